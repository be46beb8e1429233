/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    // Sharing with other processes.
    public sealed partial class GmmContext
    {
        /// <summary>
        /// A handle of the block that the address lies in: bytes to send to another process of the same user.
        /// </summary>
        public byte[] Export(IntPtr address)
        {
            byte[] result = new byte[IpcHandleSize];
            using (Use context = new Use(handle))
            {
                Native.gmm_ipc_export(context.Address, address, result);
            }
            return result;
        }

        /// <summary>Maps another process's memory for device 0.</summary>
        public GmmBuffer Import(byte[] ipcHandle)
        {
            return Import(ipcHandle, 0, 0);
        }

        /// <summary>Maps another process's memory. A timeout of 0 means 5,000 ms.</summary>
        public GmmBuffer Import(byte[] ipcHandle, int device, int timeoutMilliseconds)
        {
            return GmmBuffer.Imported(handle, ipcHandle, device, timeoutMilliseconds);
        }

        /// <summary>
        /// Makes an event on a device that other processes can wait for; see <see cref="GmmEvent.Export"/>.
        /// </summary>
        public GmmEvent IpcEvent(int device)
        {
            return new GmmEvent(handle, device, true);
        }

        /// <summary>Opens another process's event for device 0.</summary>
        public GmmEvent ImportEvent(byte[] ipcHandle)
        {
            return ImportEvent(ipcHandle, 0, 0);
        }

        /// <summary>
        /// Opens another process's event. Its waits see what the maker recorded last. A timeout of 0 means 5,000 ms.
        /// </summary>
        public GmmEvent ImportEvent(byte[] ipcHandle, int device, int timeoutMilliseconds)
        {
            byte[] desc = new GmmIpcImportOptions
            {
                Device = device, TimeoutMilliseconds = timeoutMilliseconds
            }.Encode();
            return new GmmEvent(handle, (IntPtr native, out IntPtr address) =>
                Native.gmm_event_import(native, ipcHandle, desc, out address));
        }

        /// <summary>
        /// Maps the allocation of so many bytes behind a descriptor of another library, for device 0. The descriptor
        /// stays the caller's.
        /// </summary>
        public GmmBuffer ImportFd(int fd, long size)
        {
            return ImportFd(fd, GmmFdType.Default, size, 0);
        }

        /// <summary>
        /// Maps the allocation of so many bytes behind a descriptor of another library. The descriptor stays the
        /// caller's.
        /// </summary>
        public GmmBuffer ImportFd(int fd, GmmFdType type, long size, int device)
        {
            return GmmBuffer.ImportedFd(handle, fd, type, size, device);
        }

        /// <summary>
        /// Configures the socket's directory and the users who may share beside this one. The call comes before the
        /// first export or import.
        /// </summary>
        public void ConfigureIpc(GmmIpcOptions options)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_ipc_configure(context.Address, options.Encode());
            }
        }
    }
}
