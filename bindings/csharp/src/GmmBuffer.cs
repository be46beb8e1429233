/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Diagnostics;
using System.Runtime.InteropServices;
using System.Threading;

namespace Gmm
{
    /// <summary>
    /// A block of memory, allocated here or imported from another process. Disposing of it frees it; the finalizer
    /// frees a forgotten one. It keeps its context, heap and stream alive.
    /// </summary>
    public sealed partial class GmmBuffer : IDisposable
    {
        private readonly GmmContextHandle context;
        private readonly GmmSafeHandle handle;

        /// <summary>Null when imported.</summary>
        private readonly GmmBlockHandle block;

        private GmmBuffer(GmmContextHandle context, GmmSafeHandle handle, long size, GmmKind kind)
        {
            this.context = context;
            this.handle = handle;
            block = handle as GmmBlockHandle;
            Size = size;
            Kind = kind;
        }

        internal static GmmBuffer Allocated(GmmContextHandle context, GmmObjectHandle heap, GmmStream stream, long size,
            GmmKind kind, Func<IntPtr, IntPtr> allocate)
        {
            Show.CheckSize("size", size);
            GmmSafeHandle parent = heap != null ? (GmmSafeHandle)heap : context;
            bool parentKept = false;
            bool streamKept = false;
            bool made = false;
            try
            {
                GmmSafeHandle.Keep(parent);
                parentKept = true;
                if (stream.Handle != null)
                {
                    GmmSafeHandle.Keep(stream.Handle);
                    streamKept = true;
                }
                GmmBlockHandle handle = new GmmBlockHandle(allocate(stream.RawAddress), context, parent, stream);
                made = true;
                return new GmmBuffer(context, handle, size, kind);
            }
            finally
            {
                if (!made && streamKept)
                {
                    stream.Handle.DangerousRelease();
                }
                if (!made && parentKept)
                {
                    parent.DangerousRelease();
                }
            }
        }

        internal static GmmBuffer Imported(GmmContextHandle context, byte[] ipcHandle, int device,
            int timeoutMilliseconds)
        {
            byte[] desc = new GmmIpcImportOptions
            {
                Device = device, TimeoutMilliseconds = timeoutMilliseconds
            }.Encode();
            return Imported(context, (IntPtr native, out IntPtr address) =>
                Native.gmm_ipc_import(native, ipcHandle, desc, out address));
        }

        internal static GmmBuffer ImportedFd(GmmContextHandle context, int fd, GmmFdType type, long size, int device)
        {
            byte[] desc = new GmmIpcFdOptions { Type = type, Size = size, Device = device }.Encode();
            return Imported(context, (IntPtr native, out IntPtr address) =>
                Native.gmm_ipc_import_fd(native, fd, desc, out address));
        }

        private delegate void Import(IntPtr context, out IntPtr address);

        private static GmmBuffer Imported(GmmContextHandle context, Import how)
        {
            bool kept = false;
            GmmObjectHandle handle = null;
            bool made = false;
            try
            {
                GmmSafeHandle.Keep(context);
                kept = true;
                IntPtr address;
                how(context.DangerousGetHandle(), out address);
                handle = new GmmObjectHandle(address, context,
                    mapped => Native.gmm_ipc_close(context.DangerousGetHandle(), mapped));
                GmmPointerInfo info = GmmContext.Query(context.DangerousGetHandle(), address);
                made = true;
                return new GmmBuffer(context, handle, (long)info.Base + info.Size - (long)address, info.Kind);
            }
            finally
            {
                if (!made && handle != null)
                {
                    handle.Dispose();
                }
                else if (!made && kept)
                {
                    context.DangerousRelease();
                }
            }
        }

        /// <summary>The address in the C interface.</summary>
        public IntPtr Address
        {
            get
            {
                using (Use buffer = Using())
                {
                    return buffer.Address;
                }
            }
        }

        /// <summary>The requested size in bytes.</summary>
        public long Size { get; }

        /// <summary>The kind of memory.</summary>
        public GmmKind Kind { get; }

        /// <summary>Whether Dispose() was called.</summary>
        public bool IsDisposed
        {
            get { return handle.IsDisposed; }
        }

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
                using (Use buffer = Using())
                {
                    IntPtr native = context.DangerousGetHandle();
                    IntPtr stream = OwnStream;
                    IntPtr here = (IntPtr)((long)buffer.Address + offset);
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

        /// <summary>Queues a fill with one byte value.</summary>
        public void Fill(long offset, long length, int value, GmmStream stream)
        {
            Check(offset, length);
            using (Use buffer = Using())
            using (Use on = new Use(stream))
            {
                Native.gmm_fill(context.DangerousGetHandle(), (IntPtr)((long)buffer.Address + offset), (uint)value,
                    (ulong)length, on.Address);
            }
        }

        /// <summary>
        /// Queues a fill of the whole buffer with one byte value, in the order of the stream on which it was allocated.
        /// </summary>
        public void Fill(int value)
        {
            using (Use buffer = Using())
            {
                Native.gmm_fill(context.DangerousGetHandle(), buffer.Address, (uint)value, (ulong)Size, OwnStream);
            }
        }

        /// <summary>
        /// Records that the stream uses the buffer too. After the free, its memory is not reused before the stream has
        /// done the work that it had queued by then.
        /// </summary>
        public void RecordUse(GmmStream stream)
        {
            using (Use buffer = Using())
            using (Use on = new Use(stream))
            {
                Native.gmm_record_use(context.DangerousGetHandle(), buffer.Address, on.Address);
            }
        }

        /// <summary>Names the buffer, for snapshots and the report of leaks; null takes the name away.</summary>
        public void SetName(string name)
        {
            using (Use buffer = Using())
            {
                Native.gmm_name(context.DangerousGetHandle(), buffer.Address, name);
            }
        }

        /// <summary>What the library knows about the address.</summary>
        public GmmPointerInfo Query()
        {
            using (Use buffer = Using())
            {
                return GmmContext.Query(context.DangerousGetHandle(), buffer.Address);
            }
        }

        /// <summary>
        /// Gives a hint about the whole buffer, which must be Managed. The location is a device or <see
        /// cref="GmmContext.HostLocation"/>.
        /// </summary>
        public void Advise(GmmAdvice advice, int location)
        {
            using (Use buffer = Using())
            {
                Native.gmm_advise(context.DangerousGetHandle(), buffer.Address, 0, (uint)advice, location);
            }
        }

        /// <summary>Queues the migration of the whole buffer, which must be Managed.</summary>
        public void Prefetch(int location, GmmStream stream)
        {
            using (Use buffer = Using())
            using (Use on = new Use(stream))
            {
                Native.gmm_prefetch(context.DangerousGetHandle(), buffer.Address, 0, location, on.Address);
            }
        }

        /// <summary>Moves the buffer; its address stays. A move to the host waits for it.</summary>
        public void Move(int location)
        {
            Move(location, GmmStream.Default, false);
        }

        /// <summary>Moves the buffer, Managed or Vmm, in the order of the stream; its address stays.</summary>
        public void Move(int location, GmmStream stream, bool nonBlocking)
        {
            using (Use buffer = Using())
            using (Use on = new Use(stream))
            {
                Native.gmm_move(context.DangerousGetHandle(), buffer.Address, location,
                    new GmmMoveOptions { Stream = stream, NonBlocking = nonBlocking }.Encode());
            }
        }

        /// <summary>
        /// Resumes the buffer, and what shares pages of the driver with it. The rest of its tag stays paused. Returns
        /// the bytes taken from the driver.
        /// </summary>
        public long Resume()
        {
            return Resume(0, Size);
        }

        /// <summary>Resumes a part of the buffer, and what shares pages of the driver with it.</summary>
        public long Resume(long offset, long length)
        {
            Check(offset, length);
            using (Use buffer = Using())
            {
                ulong bytes;
                Native.gmm_resume_range(context.DangerousGetHandle(), (IntPtr)((long)buffer.Address + offset),
                    (ulong)length, out bytes);
                return (long)bytes;
            }
        }

        /// <summary>
        /// Waits until a resume by another caller has made the buffer usable. It starts none, and returns false on
        /// timeout.
        /// </summary>
        public bool WaitReady(TimeSpan timeout)
        {
            return WaitReady(0, Size, timeout);
        }

        /// <summary>
        /// Does the same as WaitReady(), for a part of the buffer. Timeout.InfiniteTimeSpan waits for ever.
        /// </summary>
        public bool WaitReady(long offset, long length, TimeSpan timeout)
        {
            Check(offset, length);
            Stopwatch past = Stopwatch.StartNew();
            using (Use buffer = Using())
            {
                while (true)
                {
                    // No thread of the runtime stays long in C: Mono would not end meanwhile.
                    double left = timeout == Timeout.InfiniteTimeSpan ? 20 : (timeout - past.Elapsed).TotalMilliseconds;
                    ulong slice = left <= 0 ? 0 : Math.Min(20, (ulong)left + 1);
                    if (Native.gmm_resume_wait(context.DangerousGetHandle(), (IntPtr)((long)buffer.Address + offset),
                        (ulong)length, slice) != (int)GmmResult.NotReady)
                    {
                        return true;
                    }
                    if (left <= 0)
                    {
                        return false;
                    }
                }
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
                using (Use buffer = Using())
                {
                    Native.gmm_backup_read(context.DangerousGetHandle(), (IntPtr)((long)buffer.Address + offset),
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
            using (Use buffer = Using())
            {
                IntPtr kept;
                Native.gmm_backup_map(context.DangerousGetHandle(), (IntPtr)((long)buffer.Address + offset),
                    (ulong)length, out kept);
                return kept;
            }
        }

        /// <summary>
        /// A handle: bytes to send to another process of the same user, for <see cref="GmmContext.Import(byte[])"/>.
        /// The buffer must stay until it is imported.
        /// </summary>
        public byte[] Export()
        {
            byte[] result = new byte[GmmContext.IpcHandleSize];
            using (Use buffer = Using())
            {
                Native.gmm_ipc_export(context.DangerousGetHandle(), buffer.Address, result);
            }
            return result;
        }

        /// <summary>Opens a file descriptor of the driver's allocation that the buffer lies in.</summary>
        public GmmExportedFd ExportFd()
        {
            return ExportFd(GmmFdType.Default);
        }

        /// <summary>
        /// Opens a file descriptor of a type that the memory has: for <see cref="GmmContext.ImportFd(int, long)"/>, for
        /// Vulkan, as a dma-buf.
        /// </summary>
        public GmmExportedFd ExportFd(GmmFdType type)
        {
            using (Use buffer = Using())
            {
                byte[] bytes = GmmIpcFdInfo.BytesForC();
                Native.gmm_ipc_export_fd(context.DangerousGetHandle(), buffer.Address, (uint)type, bytes);
                GmmIpcFdInfo info = new GmmIpcFdInfo(bytes);
                return new GmmExportedFd(info.Fd, info.Offset, info.Size);
            }
        }

        /// <summary>
        /// The driver's own handle of DEVICE memory. The buffer must stay until the other side has closed it.
        /// </summary>
        public GmmLegacyHandle ExportLegacy()
        {
            using (Use buffer = Using())
            {
                byte[] info = GmmLegacyHandle.BytesForC();
                Native.gmm_ipc_export_legacy(context.DangerousGetHandle(), buffer.Address, info);
                return new GmmLegacyHandle(info);
            }
        }

        /// <summary>
        /// Frees the memory in the order of the stream on which it was allocated. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            handle.CloseOrThrow();
        }

        /// <summary>
        /// Frees the memory in the order of this stream. A second call does nothing. An imported buffer has no stream.
        /// </summary>
        public void Dispose(GmmStream stream)
        {
            if (block == null)
            {
                throw new NotSupportedException("an imported buffer is not freed on a stream: use Dispose()");
            }
            if (!block.IsDisposed)
            {
                block.FreeOn(stream);
            }
            handle.CloseOrThrow();
        }

        private Use Using()
        {
            Use use = new Use(handle);
            if (block != null && block.IsReset)
            {
                use.Dispose();
                throw new ObjectDisposedException(nameof(GmmBuffer),
                    "this buffer's memory went with a reset of its context");
            }
            return use;
        }

        private IntPtr OwnStream
        {
            get { return block == null ? IntPtr.Zero : block.StreamAddress; }
        }

        private void Check(long offset, long length)
        {
            if (offset < 0 || length < 0 || offset > Size - length)
            {
                throw new ArgumentOutOfRangeException(nameof(offset), "bytes " + offset + " to " + (offset + length)
                    + " of a buffer of " + Size + " bytes");
            }
        }

        /// <summary>The size, the address and what the library knows about the memory.</summary>
        public override string ToString()
        {
            return Show.Or("GmmBuffer { closed }", () =>
            {
                GmmPointerInfo info = Query();
                return "GmmBuffer { " + Show.Size(Size) + " at " + Show.Hex(Address) + ", " + info.Kind + " of device "
                    + info.Device + ", " + info.State + " }";
            });
        }
    }
}
