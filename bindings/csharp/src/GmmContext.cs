/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;

namespace Gmm
{
    /// <summary>
    /// A context binds the library to one backend. Several may live at once. After Dispose() it takes no more calls.
    /// Its memory goes back with the last buffer, heap, stream, event and pin that was made from it. Every method may
    /// be called from any thread. A failure is a <see cref="GmmException"/> and changes nothing. Use after Dispose() is
    /// an ObjectDisposedException.
    /// </summary>
    public sealed partial class GmmContext : IDisposable
    {
        /// <summary>The host's memory, where a method takes a location.</summary>
        public const int HostLocation = -1;
        /// <summary>The value that removes a limit.</summary>
        public const long NoLimit = -1;
        /// <summary>Free memory stays until a request or a trim takes it.</summary>
        public const long DecommitNever = -1;
        /// <summary>Bytes of an IPC handle.</summary>
        public const int IpcHandleSize = 256;

        private readonly GmmContextHandle handle;
        private readonly Callbacks callbacks;

        /// <summary>
        /// Opens the backend that the environment variable GMM_BACKEND names, else cuda when a driver and a device
        /// answer, else host.
        /// </summary>
        public GmmContext() : this(new GmmContextOptions())
        {
        }

        /// <summary>Opens this backend.</summary>
        public GmmContext(GmmBackend backend) : this(new GmmContextOptions { Backend = backend })
        {
        }

        /// <summary>Opens a context with these options.</summary>
        public GmmContext(GmmContextOptions options)
        {
            Library.Load();
            callbacks = new Callbacks(options.Logger);
            handle = Open(options, callbacks);
        }

        /// <summary>Not inlined: see Library.Load().</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static GmmContextHandle Open(GmmContextOptions options, Callbacks callbacks)
        {
            GmmContextHandle handle = null;
            GCHandle user = GCHandle.Alloc(callbacks);
            try
            {
                if (options.Logger != null)
                {
                    Dispatcher.Start();
                }
                IntPtr address;
                Native.gmm_context_create(
                    options.Encode(options.Logger == null ? IntPtr.Zero : GCHandle.ToIntPtr(user)), out address);
                handle = new GmmContextHandle(address, user);
                return handle;
            }
            finally
            {
                if (handle == null)
                {
                    user.Free();
                }
            }
        }

        /// <summary>The version of the library that is loaded, for example "1.0.0".</summary>
        public static string Version
        {
            get
            {
                Library.Load();
                return LoadedVersion();
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static string LoadedVersion()
        {
            return Native.gmm_version_string();
        }

        /// <summary>The version of the interface that this assembly was made for, for example "1.0.0".</summary>
        public static string InterfaceVersion
        {
            get { return Native.GMM_VERSION_MAJOR + "." + Native.GMM_VERSION_MINOR + "." + Native.GMM_VERSION_PATCH; }
        }

        /// <summary>Whether Dispose() was called.</summary>
        public bool IsDisposed
        {
            get { return handle.IsDisposed; }
        }

        /// <summary>The backend and the devices that the context opened.</summary>
        public GmmContextInfo Info()
        {
            using (Use context = new Use(handle))
            {
                byte[] info = GmmContextInfo.BytesForC();
                Native.gmm_context_query(context.Address, info);
                return new GmmContextInfo(info);
            }
        }

        /// <summary>Describes a device.</summary>
        public GmmDeviceInfo Device(int device)
        {
            using (Use context = new Use(handle))
            {
                byte[] info = GmmDeviceInfo.BytesForC();
                Native.gmm_device_query(context.Address, device, info);
                return new GmmDeviceInfo(info);
            }
        }

        /// <summary>Allocates Device memory on device 0, under the current tag, on the default stream.</summary>
        public GmmBuffer Alloc(long size)
        {
            return Alloc(size, new GmmAllocOptions());
        }

        /// <summary>Allocates memory of this kind on device 0, under the current tag, on the default stream.</summary>
        public GmmBuffer Alloc(long size, GmmKind kind)
        {
            return Alloc(size, new GmmAllocOptions { Kind = kind });
        }

        /// <summary>Allocates `size` bytes.</summary>
        public GmmBuffer Alloc(long size, GmmAllocOptions options)
        {
            GmmKind kind = options.Kind != GmmKind.Unspecified ? options.Kind
                : options.Comm ? GmmKind.Vmm : GmmKind.Device;
            return GmmBuffer.Allocated(handle, null, options.Stream ?? GmmStream.Default, size, kind, stream =>
                Allocate(handle.DangerousGetHandle(), size, options, stream));
        }

        /// <summary>Allocates memory without an object; <see cref="Free"/> takes its address.</summary>
        public IntPtr Allocate(long size, GmmAllocOptions options)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            using (Use stream = new Use(options.Stream ?? GmmStream.Default))
            {
                return Allocate(context.Address, size, options, stream.Address);
            }
        }

        private static IntPtr Allocate(IntPtr context, long size, GmmAllocOptions options, IntPtr stream)
        {
            IntPtr address;
            Native.gmm_alloc(context, (ulong)size, options.Encode(), out address);
            NameOrFree(context, options.Name, stream, address);
            return address;
        }

        /// <summary>Names a new block, which is freed when that fails.</summary>
        internal static void NameOrFree(IntPtr context, string name, IntPtr stream, IntPtr address)
        {
            if (name == null)
            {
                return;
            }
            bool named = false;
            try
            {
                Native.gmm_name(context, address, name);
                named = true;
            }
            finally
            {
                if (!named)
                {
                    Native.gmm_free(context, address, stream);
                }
            }
        }

        /// <summary>
        /// Names the block around this address, for snapshots and the report of leaks; null takes the name away. The
        /// name has 1 to 63 bytes in UTF-8 and goes with the block.
        /// </summary>
        public void Name(IntPtr address, string name)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_name(context.Address, address, name);
            }
        }

        /// <summary>
        /// Frees memory of Allocate(), in the order of the stream. A null address does nothing. A GmmBuffer frees
        /// itself, so its address must not come here.
        /// </summary>
        public void Free(IntPtr address, GmmStream stream)
        {
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_free(context.Address, address, on.Address);
            }
        }

        /// <summary>Describes any address: the start of a block, inside one, or foreign.</summary>
        public GmmPointerInfo Query(IntPtr address)
        {
            using (Use context = new Use(handle))
            {
                return Query(context.Address, address);
            }
        }

        internal static GmmPointerInfo Query(IntPtr context, IntPtr address)
        {
            byte[] info = GmmPointerInfo.BytesForC();
            Native.gmm_query(context, address, info);
            return new GmmPointerInfo(info);
        }

        /// <summary>Makes a heap, whose blocks share no extent with those of others.</summary>
        public GmmHeap Heap(GmmHeapOptions options)
        {
            return new GmmHeap(handle, options);
        }

        /// <summary>Makes a stream on a device.</summary>
        public GmmStream Stream(int device)
        {
            return new GmmStream(handle, device);
        }

        /// <summary>Makes an event on a device.</summary>
        public GmmEvent Event(int device)
        {
            return new GmmEvent(handle, device, false);
        }

        /// <summary>Blocks until everything queued on the stream so far is done.</summary>
        public void Synchronize(GmmStream stream)
        {
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_stream_synchronize(context.Address, on.Address);
            }
        }

        /// <summary>Tells gmm that the program is about to destroy a stream that gmm did not make.</summary>
        public void Forget(GmmStream stream)
        {
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_stream_forget(context.Address, on.Address);
            }
        }

        /// <summary>
        /// Queues a copy between any two addresses. Ordinary host memory must stay in its place until the stream has
        /// done the copy.
        /// </summary>
        public void Copy(IntPtr destination, IntPtr source, long size, GmmStream stream)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_copy(context.Address, destination, source, (ulong)size, on.Address);
            }
        }

        /// <summary>Queues a fill with one byte value.</summary>
        public void Fill(IntPtr destination, int value, long size, GmmStream stream)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_fill(context.Address, destination, (uint)value, (ulong)size, on.Address);
            }
        }

        /// <summary>Records that the stream uses the block at this address too.</summary>
        public void RecordUse(IntPtr address, GmmStream stream)
        {
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_record_use(context.Address, address, on.Address);
            }
        }

        /// <summary>
        /// Page-locks an array and maps it for every device. The garbage collector then leaves it in its place.
        /// </summary>
        public GmmPin Pin(byte[] memory)
        {
            GCHandle array = GCHandle.Alloc(memory, GCHandleType.Pinned);
            return new GmmPin(handle, array.AddrOfPinnedObject(), memory.Length, 0, false, array);
        }

        /// <summary>
        /// Page-locks the program's own memory and maps it for every device. Dispose of the pin before the memory is
        /// freed.
        /// </summary>
        public GmmPin Pin(IntPtr address, long size, int device, bool readOnly)
        {
            Show.CheckSize("size", size);
            return new GmmPin(handle, address, size, device, readOnly, default(GCHandle));
        }

        /// <summary>Gives a hint about a range of managed memory. A size of 0 means to the end of the block.</summary>
        public void Advise(IntPtr address, long size, GmmAdvice advice, int location)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            {
                Native.gmm_advise(context.Address, address, (ulong)size, (uint)advice, location);
            }
        }

        /// <summary>Queues the migration of a range of managed memory.</summary>
        public void Prefetch(IntPtr address, long size, int location, GmmStream stream)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_prefetch(context.Address, address, (ulong)size, location, on.Address);
            }
        }

        /// <summary>
        /// Limits how many bytes a device, a tag, or a tag on a device may hold from the driver. A null scope is the
        /// whole context. <see cref="NoLimit"/> removes the limit.
        /// </summary>
        public void SetLimit(GmmScope scope, long bytes)
        {
            if (bytes != NoLimit)
            {
                Show.CheckSize("bytes", bytes);
            }
            using (Use context = new Use(handle))
            {
                Native.gmm_limit_set(context.Address, Encode(scope), (ulong)bytes);
            }
        }

        /// <summary>
        /// The milliseconds after which idle free memory goes back to the driver; <see cref="DecommitNever"/> keeps it.
        /// Setting 0 takes the value of GMM_DECOMMIT_AFTER_MS in the environment, else never.
        /// </summary>
        public long DecommitAfterMilliseconds
        {
            get { return Info().DecommitAfterMilliseconds; }
            set
            {
                using (Use context = new Use(handle)) Native.gmm_context_set_decommit(context.Address, (ulong)value);
            }
        }

        /// <summary>
        /// Sets the handler that is called when memory is short; null removes it. A handler that refers to the context
        /// keeps it from the garbage collector.
        /// </summary>
        public void SetOomHandler(GmmOomHandler handler)
        {
            using (Use context = new Use(handle))
            {
                callbacks.OomHandler = handler;
                Native.gmm_context_set_oom_handler(context.Address, handler == null ? IntPtr.Zero : handle.Callbacks);
            }
        }

        /// <summary>Adds up all counters.</summary>
        public GmmStatistics Statistics()
        {
            return Statistics(null);
        }

        /// <summary>Adds up the counters of a scope.</summary>
        public GmmStatistics Statistics(GmmScope scope)
        {
            using (Use context = new Use(handle))
            {
                byte[] info = GmmStatistics.BytesForC();
                Native.gmm_stats_query(context.Address, Encode(scope), info);
                return new GmmStatistics(info);
            }
        }

        /// <summary>The live blocks of the context, copied at one moment for each heap.</summary>
        public IReadOnlyList<GmmBlockInfo> Blocks()
        {
            return Blocks(null);
        }

        /// <summary>The live blocks of a scope, copied at one moment for each heap.</summary>
        public IReadOnlyList<GmmBlockInfo> Blocks(GmmScope scope)
        {
            List<GmmBlockInfo> found = new List<GmmBlockInfo>();
            WithSnapshot(scope, snapshot =>
            {
                byte[] all = GmmSnapshotInfo.BytesForC();
                Native.gmm_snapshot_query(snapshot, all);
                long count = new GmmSnapshotInfo(all).BlockCount;
                byte[] info = GmmBlockInfo.BytesForC();
                for (long i = 0; i < count; ++i)
                {
                    Native.gmm_snapshot_query_block(snapshot, (ulong)i, info);
                    found.Add(new GmmBlockInfo(info));
                }
            });
            return found;
        }

        private void WithSnapshot(GmmScope scope, Action<IntPtr> operation)
        {
            using (Use context = new Use(handle))
            {
                IntPtr snapshot;
                Native.gmm_snapshot_create(context.Address, Encode(scope), out snapshot);
                try
                {
                    operation(snapshot);
                }
                finally
                {
                    Native.gmm_snapshot_destroy(snapshot);
                }
            }
        }

        private static byte[] Encode(GmmScope scope)
        {
            return scope == null ? null : scope.Encode();
        }

        /// <summary>Writes a JSON object that describes every heap, extent and live block.</summary>
        public void Snapshot(GmmSnapshotWriter writer)
        {
            if (writer == null)
            {
                throw new ArgumentNullException(nameof(writer));
            }
            GCHandle user = GCHandle.Alloc(writer);
            try
            {
                WithSnapshot(null, snapshot => Native.gmm_snapshot_write(snapshot, GCHandle.ToIntPtr(user)));
            }
            finally
            {
                user.Free();
            }
        }

        /// <summary>A JSON object that describes every heap, extent and live block.</summary>
        public string Snapshot()
        {
            using (MemoryStream text = new MemoryStream())
            {
                Snapshot(piece =>
                {
                    text.Write(piece, 0, piece.Length);
                    return true;
                });
                return Encoding.UTF8.GetString(text.ToArray());
            }
        }

        /// <summary>
        /// Starts to record every alloc and free into a file, which "gmm replay" runs and "gmm trace" prints.
        /// </summary>
        public void TraceBegin(string path)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_trace_begin(context.Address, path);
            }
        }

        /// <summary>Ends the trace.</summary>
        public void TraceEnd()
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_trace_end(context.Address);
            }
        }

        /// <summary>Gives free memory back to the driver. Returns the bytes that went back.</summary>
        public long Trim()
        {
            return Trim(null);
        }

        /// <summary>Gives free memory of a scope back to the driver. Returns the bytes that went back.</summary>
        public long Trim(GmmScope scope)
        {
            using (Use context = new Use(handle))
            {
                ulong bytes;
                Native.gmm_trim(context.Address, Encode(scope), out bytes);
                return (long)bytes;
            }
        }

        /// <summary>
        /// Moves the free VMM memory of a scope side by side, and returns what no reserve keeps to the driver. No
        /// address of a live block changes, and the blocks may be used meanwhile. A null scope means everything. The
        /// call moves and returns at most maxBytes together, and begins nothing more after maxMicroseconds. 0 means no
        /// bound. With live the call moves live blocks to other pages, too, and waits for the devices: nobody may use
        /// blocks of the scope or allocate there meanwhile.
        /// </summary>
        public GmmCompactInfo Compact(GmmScope scope, long maxBytes, long maxMicroseconds, bool live = false)
        {
            GmmCompactOptions options = new GmmCompactOptions
            {
                Live = live, MaxBytes = maxBytes, MaxMicroseconds = maxMicroseconds
            };
            using (Use context = new Use(handle))
            {
                byte[] info = GmmCompactInfo.BytesForC();
                Native.gmm_compact(context.Address, Encode(scope), options.Encode(), info);
                return new GmmCompactInfo(info);
            }
        }

        /// <summary>
        /// Frees everything that was allocated from the context, live blocks too. Imports and pins stay. Buffers that
        /// are still there can then only be disposed of, and their spans must not be touched. No other thread may be
        /// inside a call on the context.
        /// </summary>
        public void Reset()
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_reset(context.Address);
                handle.NextGeneration();
            }
        }

        /// <summary>
        /// Defers the expensive work of frees until the returned object is disposed of. Deferrals nest.
        /// </summary>
        public IDisposable Defer()
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_defer_begin(context.Address);
            }
            return new Deferral(this);
        }

        private sealed class Deferral : IDisposable
        {
            private readonly GmmContext owner;
            private int closed;

            internal Deferral(GmmContext owner)
            {
                this.owner = owner;
            }

            public void Dispose()
            {
                if (System.Threading.Interlocked.Exchange(ref closed, 1) == 0)
                {
                    using (Use context = new Use(owner.handle))
                    {
                        Native.gmm_defer_end(context.Address);
                    }
                }
            }
        }

        /// <summary>
        /// Closes the context, which takes no more calls. The backend ends, and all memory goes back, with the last
        /// object made from it. Inside the handler of a watcher it is Busy, and the context stays open. A second call
        /// does nothing.
        /// </summary>
        public void Dispose()
        {
            WatchCall.CheckOutside("GmmContext.Dispose()", false);
            handle.CloseOrThrow();
        }

        /// <summary>The backend and what the context holds.</summary>
        public override string ToString()
        {
            return Show.Or("GmmContext { closed }", () =>
            {
                GmmContextInfo info = Info();
                GmmStatistics now = Statistics();
                return "GmmContext { " + info.BackendName + ", " + info.DeviceCount + " devices, " + now.LiveBlocks
                    + " blocks of " + Show.Size(now.LiveBytes) + " live, " + Show.Size(now.ReservedBytes)
                    + " reserved }";
            });
        }
    }
}
