/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// A file descriptor of a driver's allocation, for example for Vulkan. It keeps the memory alive. Dispose of it, or
    /// call Detach() when another library takes it over. The garbage collector does not close it.
    /// </summary>
    public sealed class GmmExportedFd : IDisposable
    {
        private int fd;

        internal GmmExportedFd(int fd, long offset, long size)
        {
            this.fd = fd;
            Offset = offset;
            Size = size;
        }

        /// <summary>The descriptor.</summary>
        public int Fd => Open(Volatile.Read(ref fd));

        private static int Open(int fd) => fd >= 0 ? fd : throw new ObjectDisposedException(nameof(GmmExportedFd));

        /// <summary>Bytes from the start of the allocation to the address.</summary>
        public long Offset { get; }

        /// <summary>Bytes of the allocation.</summary>
        public long Size { get; }

        /// <summary>Returns the descriptor, which the caller closes from now on.</summary>
        public int Detach() => Open(Interlocked.Exchange(ref fd, -1));

        /// <summary>Closes the descriptor. A second call, or one after Detach(), does nothing.</summary>
        public void Dispose()
        {
            int taken = Interlocked.Exchange(ref fd, -1);
            if (taken >= 0)
            {
                Native.gmm_csharp_close(taken);
            }
        }

        /// <inheritdoc/>
        public override string ToString() =>
            "GmmExportedFd { " + fd + ", offset " + Offset + ", " + Show.Size(Size) + " }";
    }
}
