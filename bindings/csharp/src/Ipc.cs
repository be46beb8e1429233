/* SPDX-License-Identifier: Apache-2.0 */
using System.Collections.Generic;

namespace Gmm
{
    /// <summary>The type of a file descriptor of memory.</summary>
    public enum GmmFdType
    {
        /// <summary>
        /// Export: Opaque for VMM memory of a GPU, File for all else. Import: File for a file or memfd, else Opaque.
        /// </summary>
        Default = 0,
        /// <summary>
        /// The driver's own descriptor, which Vulkan takes as VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT. VMM memory.
        /// </summary>
        Opaque = 1,
        /// <summary>A memory file. HOST memory, and all memory of the host backend.</summary>
        File = 2,
        /// <summary>A Linux dma-buf of the whole allocation.</summary>
        DmaBuf = 3,
        /// <summary>Import only: an opaque descriptor that Vulkan or OpenGL made.</summary>
        Vulkan = 4
    }

    /// <summary>
    /// The users who may share with a context, and its socket's directory; see <see cref="GmmContext.ConfigureIpc"/>.
    /// </summary>
    public sealed class GmmIpcOptions
    {
        /// <summary>
        /// The directory of the socket; null means $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-uid.
        /// </summary>
        public string Directory { get; set; }

        /// <summary>
        /// The ids of further users, who may import from this context, and from whom it imports. They need a directory.
        /// </summary>
        public IList<int> Users { get; } = new List<int>();

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>
    /// The driver's own handle of memory (cudaIpcMemHandle_t), for libraries that take no other. gmm does not see who
    /// opens it.
    /// </summary>
    public sealed class GmmLegacyHandle
    {
        /// <summary>Bytes of the driver's handle.</summary>
        public const int HandleSize = 64;

        private readonly byte[] bytes;

        internal GmmLegacyHandle(byte[] bytes, long offset, long size)
        {
            this.bytes = bytes;
            Offset = offset;
            Size = size;
        }

        /// <summary>
        /// Bytes from the start of the driver's allocation, which the other side opens, to the memory.
        /// </summary>
        public long Offset { get; }

        /// <summary>Bytes of the driver's allocation.</summary>
        public long Size { get; }

        /// <summary>A copy of the handle.</summary>
        public byte[] ToArray()
        {
            return (byte[])bytes.Clone();
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }
}
