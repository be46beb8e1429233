/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// A block of memory, allocated here or imported from another process. Disposing of it frees it; the finalizer
    /// frees a forgotten one. It keeps its context, heap and stream alive.
    /// </summary>
    public sealed partial class GmmBuffer : GmmObject
    {
        private readonly GmmSafeHandle context;
        private readonly int generation;

        /// <summary>Null when imported.</summary>
        private readonly FreeOn freeOn;

        private GmmBuffer(GmmSafeHandle handle, GmmSafeHandle context, FreeOn freeOn, long size, GmmKind kind)
            : base(handle)
        {
            this.context = context;
            this.freeOn = freeOn;
            generation = context.Generation;
            Size = size;
            Kind = kind;
        }

        /// <summary>`heap` may be null. The buffer holds a reference to each of the three until it is freed.</summary>
        internal static GmmBuffer Allocated(GmmSafeHandle context, GmmSafeHandle heap, GmmStream stream, long size,
            GmmKind kind, Func<IntPtr, IntPtr> allocate)
        {
            Show.CheckSize("size", size);
            FreeOn freeOn = new FreeOn(stream ?? GmmStream.Default);
            int born = context.Generation;
            GmmSafeHandle handle = GmmSafeHandle.Child(nameof(GmmBuffer), heap ?? context, freeOn,
                (IntPtr parent, out IntPtr made) => made = allocate(freeOn.Address), made =>
                {
                    // After a reset the address may be another block's.
                    if (context.Generation == born)
                    {
                        Native.gmm_free(context.DangerousGetHandle(), made, freeOn.Address);
                    }
                });
            return new GmmBuffer(handle, context, freeOn, size, kind);
        }

        internal static GmmBuffer Imported(GmmSafeHandle context, GmmSafeHandle.Maker maker)
        {
            GmmSafeHandle handle = GmmSafeHandle.Child(nameof(GmmBuffer), context, null, maker,
                mapped => Native.gmm_ipc_close(context.DangerousGetHandle(), mapped));
            try
            {
                IntPtr address = handle.DangerousGetHandle();
                GmmPointerInfo info = GmmContext.Query(context.DangerousGetHandle(), address);
                return new GmmBuffer(handle, context, null, (long)info.Base + info.Size - (long)address, info.Kind);
            }
            catch
            {
                handle.Dispose();
                throw;
            }
        }

        /// <summary>The address in the C interface.</summary>
        public IntPtr Address
        {
            get
            {
                using (Use self = Using())
                {
                    return self.Address;
                }
            }
        }

        /// <summary>The requested size in bytes.</summary>
        public long Size { get; }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>Copies from an array into the buffer and waits for the copy. It works for every kind.</summary>
        public void Write(long offset, byte[] source)
        {
            Check(offset, source.Length);
            Copy(offset, source, true);
        }

        /// <summary>Copies from the buffer into a new array and waits for the copy. It works for every kind.</summary>
        public byte[] Read(long offset, int length)
        {
            Check(offset, length);
            byte[] result = new byte[length];
            Copy(offset, result, false);
            return result;
        }

        private void Copy(long offset, byte[] array, bool toBuffer)
        {
            GCHandle pinned = GCHandle.Alloc(array, GCHandleType.Pinned);
            try
            {
                using (Use self = Using())
                {
                    IntPtr native = context.DangerousGetHandle();
                    IntPtr stream = OwnStream;
                    IntPtr here = (IntPtr)((long)self.Address + offset);
                    IntPtr there = pinned.AddrOfPinnedObject();
                    Native.gmm_copy(native, toBuffer ? here : there, toBuffer ? there : here, (ulong)array.Length,
                        stream);
                    Native.gmm_stream_synchronize(native, stream);
                }
            }
            finally
            {
                pinned.Free();
            }
        }

        /// <summary>
        /// Queues a copy from another buffer. Both must stay undisposed until the stream has done the copy.
        /// </summary>
        public void CopyFrom(long offset, GmmBuffer source, long sourceOffset, long length, GmmStream stream)
        {
            Check(offset, length);
            source.Check(sourceOffset, length);
            using (Use to = Using())
            using (Use from = source.Using())
            using (Use on = new Use(stream))
            {
                Native.gmm_copy(context.DangerousGetHandle(), (IntPtr)((long)to.Address + offset),
                    (IntPtr)((long)from.Address + sourceOffset), (ulong)length, on.Address);
            }
        }

        /// <summary>
        /// Queues a fill of the whole buffer with one byte value, in the order of the stream on which it was allocated.
        /// </summary>
        public void Fill(int value)
        {
            using (Use self = Using())
            {
                Native.gmm_fill(context.DangerousGetHandle(), self.Address, (uint)value, (ulong)Size, OwnStream);
            }
        }

        /// <summary>
        /// Waits until a resume by another caller has made the buffer usable. It starts none, and returns false on
        /// timeout.
        /// </summary>
        public bool WaitReady(TimeSpan timeout) => WaitReady(0, Size, timeout);

        /// <summary>
        /// Does the same as WaitReady(), for a part of the buffer. Timeout.InfiniteTimeSpan waits for ever.
        /// </summary>
        public bool WaitReady(long offset, long length, TimeSpan timeout)
        {
            Check(offset, length);
            using (Use self = Using())
            {
                IntPtr start = (IntPtr)((long)self.Address + offset);
                return GmmTicket.WaitInSlices(timeout, milliseconds => Native.gmm_resume_wait(
                    context.DangerousGetHandle(), start, (ulong)length, milliseconds) != (int)GmmResult.NotReady);
            }
        }

        /// <summary>
        /// The kept contents of a part of the paused buffer, which stays paused. After a resume with <see
        /// cref="GmmPauseOptions.Retain"/> they are those of the last pause.
        /// </summary>
        public byte[] Backup(long offset, int length)
        {
            Check(offset, length);
            byte[] result = new byte[length];
            GCHandle pinned = GCHandle.Alloc(result, GCHandleType.Pinned);
            try
            {
                using (Use self = Using())
                {
                    Native.gmm_backup_read(context.DangerousGetHandle(), (IntPtr)((long)self.Address + offset),
                        (ulong)length, pinned.AddrOfPinnedObject());
                }
            }
            finally
            {
                pinned.Free();
            }
            return result;
        }

        /// <summary>
        /// The address of the kept contents of a part of the paused buffer, where they lie in one piece. It may be read
        /// until the memory is resumed, freed or discarded.
        /// </summary>
        public IntPtr BackupAddress(long offset, long length)
        {
            Check(offset, length);
            using (Use self = Using())
            {
                Native.gmm_backup_map(context.DangerousGetHandle(), (IntPtr)((long)self.Address + offset),
                    (ulong)length, out IntPtr kept);
                return kept;
            }
        }

        /// <summary>
        /// Opens a file descriptor of a type that the memory has: for <see cref="GmmContext.ImportFd(int, long)"/>, for
        /// Vulkan, as a dma-buf.
        /// </summary>
        public GmmExportedFd ExportFd(GmmFdType type = GmmFdType.Default)
        {
            using (Use self = Using())
            {
                byte[] bytes = GmmIpcFdInfo.BytesForC();
                Native.gmm_ipc_export_fd(context.DangerousGetHandle(), self.Address, (uint)type, bytes);
                GmmIpcFdInfo info = new GmmIpcFdInfo(bytes);
                return new GmmExportedFd(info.Fd, info.Offset, info.Size);
            }
        }

        /// <summary>
        /// Frees the memory in the order of this stream. A second call does nothing. An imported buffer has no stream.
        /// </summary>
        public void Dispose(GmmStream stream)
        {
            if (freeOn == null)
            {
                throw new NotSupportedException("an imported buffer is not freed on a stream: use Dispose()");
            }
            if (!IsDisposed)
            {
                freeOn.Change(stream);
            }
            Dispose();
        }

        private Use Using()
        {
            Use use = new Use(handle);
            if (freeOn != null && generation != context.Generation)
            {
                use.Dispose();
                throw new ObjectDisposedException(nameof(GmmBuffer),
                    "this buffer's memory went with a reset of its context");
            }
            return use;
        }

        private IntPtr OwnStream => freeOn == null ? IntPtr.Zero : freeOn.Address;

        private void Check(long offset, long length)
        {
            if (offset < 0 || length < 0 || offset > Size - length)
            {
                throw new ArgumentOutOfRangeException(nameof(offset), "bytes " + offset + " to " + (offset + length)
                    + " of a buffer of " + Size + " bytes");
            }
        }

        /// <summary>The stream that a buffer is freed on, which it holds a reference to.</summary>
        private sealed class FreeOn : IDisposable
        {
            private readonly Thread thread = Thread.CurrentThread;
            private readonly object gate = new object();
            private GmmStream stream;
            private Use use;
            private bool released;

            internal FreeOn(GmmStream stream)
            {
                this.stream = stream;
                use = new Use(stream);
            }

            /// <summary>
            /// On another thread the per-thread stream is another one; the legacy stream is ordered behind them all.
            /// </summary>
            internal IntPtr Address
            {
                get
                {
                    lock (gate)
                    {
                        return stream == GmmStream.PerThread && Thread.CurrentThread != thread
                            ? GmmStream.Legacy.RawAddress : use.Address;
                    }
                }
            }

            internal void Change(GmmStream other)
            {
                lock (gate)
                {
                    if (!released)
                    {
                        Use next = new Use(other);
                        use.Dispose();
                        use = next;
                        stream = other;
                    }
                }
            }

            public void Dispose()
            {
                lock (gate)
                {
                    released = true;
                    use.Dispose();
                }
            }
        }

        internal override string Describe()
        {
            GmmPointerInfo info = Query();
            return Show.Size(Size) + " at " + Show.Hex(Address) + ", " + info.Kind + " of device " + info.Device + ", "
                + info.State;
        }
    }
}
