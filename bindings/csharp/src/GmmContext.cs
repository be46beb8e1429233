/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
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
    public sealed partial class GmmContext : GmmObject
    {
        /// <summary>The host's memory, where a method takes a location.</summary>
        public const int HostLocation = -1;
        /// <summary>The value that removes a limit.</summary>
        public const long NoLimit = -1;
        /// <summary>Free memory stays until a request or a trim takes it.</summary>
        public const long DecommitNever = -1;
        /// <summary>The value of GMM_DECOMMIT_AFTER_MS in the environment, else never.</summary>
        public const long DecommitDefault = 0;
        /// <summary>Bytes of an IPC handle.</summary>
        public const int IpcHandleSize = 256;

        private readonly ContextCall callbacks;

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
        public GmmContext(GmmContextOptions options) : this(options, new ContextCall(options.Logger))
        {
        }

        private GmmContext(GmmContextOptions options, ContextCall callbacks) : base(Open(options, callbacks))
        {
            this.callbacks = callbacks;
        }

        private static GmmSafeHandle Open(GmmContextOptions options, ContextCall callbacks)
        {
            Library.Load();
            return OpenLoaded(options, callbacks);
        }

        /// <summary>Not inlined: see Library.Load().</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static GmmSafeHandle OpenLoaded(GmmContextOptions options, ContextCall callbacks)
        {
            if (options.Logger != null)
            {
                Dispatcher.Start();
            }
            return GmmSafeHandle.Child(nameof(GmmContext), null, callbacks, (IntPtr none, out IntPtr made) =>
                {
                    Native.gmm_context_create(
                        options.Encode(options.Logger == null ? IntPtr.Zero : callbacks.User), out made);
                    // It collects garbage before it calls the program's handler.
                    Native.gmm_context_set_oom_handler(made, callbacks.User);
                },
                ended => Native.gmm_context_release(ended));
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
        private static string LoadedVersion() => Native.gmm_version_string();

        /// <summary>The version of the interface that this assembly was made for, for example "1.0.0".</summary>
        public static string InterfaceVersion =>
            Native.GMM_VERSION_MAJOR + "." + Native.GMM_VERSION_MINOR + "." + Native.GMM_VERSION_PATCH;

        /// <summary>Allocates Device memory on device 0, under the current tag, on the default stream.</summary>
        public GmmBuffer Alloc(long size) => Alloc(size, new GmmAllocOptions());

        /// <summary>Allocates memory of this kind on device 0, under the current tag, on the default stream.</summary>
        public GmmBuffer Alloc(long size, GmmKind kind) => Alloc(size, new GmmAllocOptions { Kind = kind });

        /// <summary>Allocates `size` bytes.</summary>
        public GmmBuffer Alloc(long size, GmmAllocOptions options)
        {
            GmmKind kind = options.Kind != GmmKind.Unspecified ? options.Kind
                : options.Comm ? GmmKind.Vmm : GmmKind.Device;
            return GmmBuffer.Allocated(handle, null, options.Stream, size, kind, stream =>
                Allocate(handle.DangerousGetHandle(), size, options, stream));
        }

        /// <summary>Allocates memory without an object; <see cref="Free"/> takes its address.</summary>
        public IntPtr Allocate(long size, GmmAllocOptions options)
        {
            Show.CheckSize("size", size);
            using (Use self = new Use(handle))
            using (Use on = new Use(options.Stream))
            {
                return Allocate(self.Address, size, options, on.Address);
            }
        }

        private static IntPtr Allocate(IntPtr context, long size, GmmAllocOptions options, IntPtr stream)
        {
            Native.gmm_alloc(context, (ulong)size, options.Encode(), out IntPtr address);
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
            try
            {
                Native.gmm_name(context, address, name);
            }
            catch
            {
                Native.gmm_free(context, address, stream);
                throw;
            }
        }

        internal static GmmPointerInfo Query(IntPtr context, IntPtr address)
        {
            byte[] info = GmmPointerInfo.BytesForC();
            Native.gmm_query(context, address, info);
            return new GmmPointerInfo(info);
        }

        /// <summary>Makes a heap, whose blocks share no extent with those of others.</summary>
        public GmmHeap Heap(GmmHeapOptions options) => new GmmHeap(handle, options);

        /// <summary>Makes a stream on a device.</summary>
        public GmmStream Stream(int device) => new GmmStream(handle, device);

        /// <summary>Makes an event on a device.</summary>
        public GmmEvent Event(int device) => new GmmEvent(handle, device, false);

        /// <summary>
        /// Makes an event on a device that other processes can wait for; see <see cref="GmmEvent.Export"/>.
        /// </summary>
        public GmmEvent IpcEvent(int device) => new GmmEvent(handle, device, true);

        /// <summary>
        /// Opens another process's event. Its waits see the last record of the maker. A timeout of 0 means 5,000 ms.
        /// </summary>
        public GmmEvent ImportEvent(byte[] ipcHandle, int device = 0, int timeoutMilliseconds = 0)
        {
            byte[] desc = Importing(device, timeoutMilliseconds);
            return new GmmEvent(handle, (IntPtr native, out IntPtr made) =>
                Native.gmm_event_import(native, ipcHandle, desc, out made));
        }

        /// <summary>Maps another process's memory. A timeout of 0 means 5,000 ms.</summary>
        public GmmBuffer Import(byte[] ipcHandle, int device = 0, int timeoutMilliseconds = 0)
        {
            byte[] desc = Importing(device, timeoutMilliseconds);
            return GmmBuffer.Imported(handle, (IntPtr native, out IntPtr made) =>
                Native.gmm_ipc_import(native, ipcHandle, desc, out made));
        }

        /// <summary>
        /// Maps memory that a process published by this name, on the device that it lies on. Waits for the name; a
        /// timeout of 0 means 5,000 ms.
        /// </summary>
        public GmmBuffer Attach(string name, bool readOnly = true, int timeoutMilliseconds = 0)
        {
            byte[] desc =
                new GmmAttachOptions { ReadOnly = readOnly, TimeoutMilliseconds = timeoutMilliseconds }.Encode();
            return GmmBuffer.Imported(handle, (IntPtr native, out IntPtr made) =>
                Native.gmm_attach(native, name, desc, out made));
        }

        /// <summary>
        /// The memory that is published on the machine. NotReady: no server runs, or none answers in this time.
        /// </summary>
        public IReadOnlyList<GmmPublishedInfo> Published(TimeSpan timeout) => Listed(timeout,
            GmmPublishedInfo.BytesForC(), Native.gmm_published_list, each => new GmmPublishedInfo(each));

        private static byte[] Importing(int device, int timeoutMilliseconds) =>
            new GmmIpcImportOptions { Device = device, TimeoutMilliseconds = timeoutMilliseconds }.Encode();

        /// <summary>
        /// Maps the allocation of so many bytes behind a descriptor of another library. The descriptor stays the
        /// caller's.
        /// </summary>
        public GmmBuffer ImportFd(int fd, GmmFdType type, long size, int device = 0)
        {
            byte[] desc = new GmmIpcFdOptions { Type = type, Size = size, Device = device }.Encode();
            return GmmBuffer.Imported(handle, (IntPtr native, out IntPtr made) =>
                Native.gmm_ipc_import_fd(native, fd, desc, out made));
        }

        /// <summary>
        /// Page-locks an array and maps it for every device. The garbage collector then leaves it in its place.
        /// </summary>
        public GmmPin Pin(byte[] memory)
        {
            GCHandle array = GCHandle.Alloc(memory, GCHandleType.Pinned);
            return GmmPin.Make(handle, array.AddrOfPinnedObject(), memory.Length, new GmmPinOptions(), array);
        }

        /// <summary>
        /// Page-locks the program's own memory and maps it for every device. Dispose of the pin before the memory is
        /// freed.
        /// </summary>
        public GmmPin Pin(IntPtr address, long size, int device, bool readOnly)
        {
            Show.CheckSize("size", size);
            GmmPinOptions options = new GmmPinOptions { Device = device, ReadOnly = readOnly };
            return GmmPin.Make(handle, address, size, options, default(GCHandle));
        }

        /// <summary>Makes a tag whose contents are dropped by a pause, or finds the tag of that name.</summary>
        public GmmTag Tag(string name) => Tag(name, null);

        /// <summary>
        /// Makes a tag, or finds it; contents and priority must then agree with it. Higher priorities resume first.
        /// </summary>
        public GmmTag Tag(string name, GmmContents contents, int priority) =>
            Tag(name, new GmmTagOptions { Contents = contents, Priority = priority });

        /// <summary>Makes a tag, or finds it; the options must then agree with it, unless they are null.</summary>
        public GmmTag Tag(string name, GmmTagOptions options) => Get(self =>
        {
            Native.gmm_tag_create(self, name, options?.Encode(), out uint tag);
            return new GmmTag(this, tag);
        });

        /// <summary>The tag with this number, as <see cref="GmmPointerInfo.Tag"/> gives it.</summary>
        public GmmTag TagByNumber(int number) => new GmmTag(this, (uint)number);

        /// <summary>
        /// The tags of the context in the order of their making. The first is <see cref="DefaultTag"/>.
        /// </summary>
        public IReadOnlyList<GmmTag> Tags() => Get(self =>
        {
            uint count = 0;
            uint[] numbers;
            do // other threads may make tags between two calls
            {
                numbers = new uint[count + 8];
                Native.gmm_tag_list(self, numbers, (uint)numbers.Length, out count);
            }
            while (count > numbers.Length);
            return numbers.Take((int)count).Select(number => new GmmTag(this, number)).ToList();
        });

        /// <summary>The tag of memory that nobody tagged.</summary>
        public GmmTag DefaultTag => new GmmTag(this, 1);

        /// <summary>
        /// Tells a handler what happens to memory or to a budget, until the watcher is disposed of. A cache of
        /// registrations lets go of memory in time, and takes its new pages.
        /// </summary>
        public GmmWatcher Watch(GmmWatchOptions options, GmmWatchHandler handler) =>
            GmmWatcher.Make(handle, options, handler);

        /// <summary>
        /// Makes a lease. The call waits for nobody: the lease's thread finds the server of the machine, or starts it.
        /// </summary>
        public GmmLease Lease(GmmLeaseOptions options) => new GmmLease(handle, options);

        /// <summary>
        /// The leases of the machine: an entry for each device that a lease uses, and one for a lease that uses none.
        /// NotReady: no server runs, or none answers in this time.
        /// </summary>
        public IReadOnlyList<GmmLeaseEntryInfo> Leases(TimeSpan timeout) =>
            Listed(timeout, GmmLeaseEntryInfo.BytesForC(), Native.gmm_lease_list, each => new GmmLeaseEntryInfo(each));

        private IReadOnlyList<T> Listed<T>(TimeSpan timeout, byte[] entry, Func<IntPtr, ulong, ulong, byte[], int> list,
            Func<byte[], T> from)
        {
            Show.CheckSize("timeout", timeout.Ticks);
            return Get(self =>
            {
                List<T> found = new List<T>();
                while (list(self, (ulong)found.Count, (ulong)timeout.TotalMilliseconds, entry) == (int)GmmResult.Ok)
                {
                    found.Add(from(entry));
                }
                return found;
            });
        }

        /// <summary>
        /// Sets the handler that is called when memory is short, also after garbage was collected; null removes it. A
        /// handler that refers to the context keeps it from the garbage collector.
        /// </summary>
        public void SetOomHandler(GmmOomHandler handler)
        {
            callbacks.OomHandler = handler;
            Run(self => Native.gmm_context_set_oom_handler(self, callbacks.User)); // waits for one that runs
        }

        /// <summary>The live blocks of a scope, copied at one moment for each heap; null means all.</summary>
        public IReadOnlyList<GmmBlockInfo> Blocks(GmmScope scope = null)
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

        private void WithSnapshot(GmmScope scope, Action<IntPtr> operation) => Run(self =>
        {
            Native.gmm_snapshot_create(self, scope?.Encode(), out IntPtr snapshot);
            try
            {
                operation(snapshot);
            }
            finally
            {
                Native.gmm_snapshot_destroy(snapshot);
            }
        });

        /// <summary>Writes a JSON object that describes every heap, extent and live block.</summary>
        public void Snapshot(GmmSnapshotWriter writer)
        {
            using (WriterCall call = new WriterCall(writer))
            {
                WithSnapshot(null, snapshot => Native.gmm_snapshot_write(snapshot, call.User));
            }
        }

        /// <summary>A JSON object that describes every heap, extent and live block.</summary>
        public string Snapshot() => TextOf(Snapshot);

        /// <summary>The bytes, counts and times of the context as Prometheus text.</summary>
        public string Metrics() => TextOf(writer =>
        {
            using (WriterCall call = new WriterCall(writer))
            {
                Run(self => Native.gmm_metrics_write(self, call.User));
            }
        });

        private static string TextOf(Action<GmmSnapshotWriter> write)
        {
            using (MemoryStream text = new MemoryStream())
            {
                write(piece =>
                {
                    text.Write(piece, 0, piece.Length);
                    return true;
                });
                return Encoding.UTF8.GetString(text.ToArray());
            }
        }

        /// <summary>
        /// Frees everything that was allocated from the context, live blocks too. Imports and pins stay. Buffers that
        /// are still there can then only be disposed of, and their spans must not be touched. No other thread may be
        /// inside a call on the context.
        /// </summary>
        public void Reset()
        {
            Run(self => Native.gmm_reset(self));
            handle.NextGeneration();
        }

        /// <summary>
        /// Defers the expensive work of frees until the returned object is disposed of. Deferrals nest.
        /// </summary>
        public IDisposable Defer()
        {
            Run(self => Native.gmm_defer_begin(self));
            return new Once(() => Run(self => Native.gmm_defer_end(self)));
        }

        /// <summary>
        /// Closes the context, which takes no more calls. The backend ends, and all memory goes back, with the last
        /// object made from it. Inside the handler of a watcher it is Busy, and the context stays open. A second call
        /// does nothing.
        /// </summary>
        public override void Dispose()
        {
            Native.gmm_csharp_check_outside(0);
            base.Dispose();
        }

        internal override string Describe()
        {
            GmmContextInfo info = Info();
            GmmStatistics now = Statistics();
            return info.BackendName + ", " + info.DeviceCount + " devices, " + now.LiveBlocks + " blocks of "
                + Show.Size(now.LiveBytes) + " live, " + Show.Size(now.ReservedBytes) + " reserved";
        }
    }
}
