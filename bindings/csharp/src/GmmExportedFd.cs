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
        public int Fd
        {
            get
            {
                int now = Volatile.Read(ref fd);
                if (now < 0)
                {
                    throw new ObjectDisposedException(nameof(GmmExportedFd));
                }
                return now;
            }
        }

        /// <summary>Bytes from the start of the allocation to the address.</summary>
        public long Offset { get; }

        /// <summary>Bytes of the allocation.</summary>
        public long Size { get; }

        /// <summary>Returns the descriptor, which the caller closes from now on.</summary>
        public int Detach()
        {
            int taken = Interlocked.Exchange(ref fd, -1);
            if (taken < 0)
            {
                throw new ObjectDisposedException(nameof(GmmExportedFd));
            }
            return taken;
        }

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
        public override string ToString()
        {
            return "GmmExportedFd { " + fd + ", offset " + Offset + ", " + Show.Size(Size) + " }";
        }
    }
}
