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
                    GC.RemoveMemoryPressure(size);
                    // After a reset the address may be another block's.
                    if (context.Generation == born)
                    {
                        Native.gmm_free(context.DangerousGetHandle(), made, freeOn.Address);
                    }
                });
            GC.AddMemoryPressure(size); // the collector sees the object only, of some bytes
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
        public IntPtr Address => At(0, 0, (native, self) => self);

        /// <summary>The requested size in bytes.</summary>
        public long Size { get; }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>The answer of a call with the context and the address of a part of the buffer.</summary>
        private T At<T>(long offset, long length, Func<IntPtr, IntPtr, T> call)
        {
            Check(offset, length);
            using (Use self = Using())
            {
                return call(context.DangerousGetHandle(), (IntPtr)((long)self.Address + offset));
            }
        }

        /// <summary>At() with the address of an array, too, which stays in its place during the call.</summary>
        private void AtArray(long offset, byte[] array, Action<IntPtr, IntPtr, IntPtr> call)
        {
            GCHandle pinned = GCHandle.Alloc(array, GCHandleType.Pinned);
            try
            {
                At(offset, array.Length, (native, self) =>
                {
                    call(native, self, pinned.AddrOfPinnedObject());
                    return true;
                });
            }
            finally
            {
                pinned.Free();
            }
        }

        /// <summary>Copies from an array into the buffer and waits for the copy. It works for every kind.</summary>
        public void Write(long offset, byte[] source) => AtArray(offset, source, (native, self, array) =>
        {
            Native.gmm_copy(native, self, array, (ulong)source.Length, OwnStream);
            Native.gmm_stream_synchronize(native, OwnStream);
        });

        /// <summary>Copies from the buffer into a new array and waits for the copy. It works for every kind.</summary>
        public byte[] Read(long offset, int length)
        {
            Check(offset, length);
            byte[] result = new byte[length];
            AtArray(offset, result, (native, self, array) =>
            {
                Native.gmm_copy(native, array, self, (ulong)length, OwnStream);
                Native.gmm_stream_synchronize(native, OwnStream);
            });
            return result;
        }

        /// <summary>
        /// Queues a copy from another buffer. Both must stay undisposed until the stream has done the copy.
        /// </summary>
        public void CopyFrom(long offset, GmmBuffer source, long sourceOffset, long length, GmmStream stream)
        {
            using (Use on = new Use(stream))
            {
                At(offset, length, (native, to) => source.At(sourceOffset, length,
                    (other, from) => Native.gmm_copy(native, to, from, (ulong)length, on.Address)));
            }
        }

        /// <summary>
        /// Queues a fill of the whole buffer with one byte value, in the order of the stream on which it was allocated.
        /// </summary>
        public void Fill(int value) => At(0, Size,
            (native, self) => Native.gmm_fill(native, self, (uint)value, (ulong)Size, OwnStream));

        /// <summary>
        /// Waits until a resume by another caller has made the buffer usable. It starts none, and returns false on
        /// timeout.
        /// </summary>
        public bool WaitReady(TimeSpan timeout) => WaitReady(0, Size, timeout);

        /// <summary>
        /// Does the same as WaitReady(), for a part of the buffer. Timeout.InfiniteTimeSpan waits for ever.
        /// </summary>
        public bool WaitReady(long offset, long length, TimeSpan timeout) => At(offset, length, (native, self) =>
            GmmTicket.WaitInSlices(timeout, milliseconds => Native.gmm_resume_wait(
                native, self, (ulong)length, milliseconds) != (int)GmmResult.NotReady));

        /// <summary>
        /// The kept contents of a part of the paused buffer, which stays paused. After a resume with <see
        /// cref="GmmPauseOptions.Retain"/> they are those of the last pause.
        /// </summary>
        public byte[] Backup(long offset, int length)
        {
            Check(offset, length);
            byte[] result = new byte[length];
            AtArray(offset, result,
                (native, self, array) => Native.gmm_backup_read(native, self, (ulong)length, array));
            return result;
        }

        /// <summary>
        /// The address of the kept contents of a part of the paused buffer, where they lie in one piece. It may be read
        /// until the memory is resumed, freed or discarded.
        /// </summary>
        public IntPtr BackupAddress(long offset, long length) => At(offset, length, (native, self) =>
        {
            Native.gmm_backup_map(native, self, (ulong)length, out IntPtr kept);
            return kept;
        });

        /// <summary>
        /// Opens a file descriptor of a type that the memory has: for <see cref="GmmContext.ImportFd"/>, for
        /// Vulkan, as a dma-buf.
        /// </summary>
        public GmmExportedFd ExportFd(GmmFdType type = GmmFdType.Default) => At(0, 0, (native, self) =>
        {
            byte[] bytes = GmmIpcFdInfo.BytesForC();
            Native.gmm_ipc_export_fd(native, self, (uint)type, bytes);
            GmmIpcFdInfo info = new GmmIpcFdInfo(bytes);
            return new GmmExportedFd(info.Fd, info.Offset, info.Size);
        });

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
            private readonly object mutex = new object();
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
                    lock (mutex)
                    {
                        return stream == GmmStream.PerThread && Thread.CurrentThread != thread
                            ? GmmStream.Legacy.RawAddress : use.Address;
                    }
                }
            }

            internal void Change(GmmStream other)
            {
                lock (mutex)
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
                lock (mutex)
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
