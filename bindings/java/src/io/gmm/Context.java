/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongConsumer;
import java.util.function.Supplier;

/**
 * A context binds the library to one backend. Several may live at once. After close() it takes no more calls. Its
 * memory goes back with the last buffer, heap, stream, event and pin that was made from it.
 *
 * <p>Every method may be called from any thread. A failure is a {@link GmmException} and changes nothing. Use after
 * close is an IllegalStateException.
 */
public final class Context extends ContextCalls {
    /** The host's memory, where a method takes a location. */
    public static final int HOST_LOCATION = -1;
    /** The value that removes a limit. */
    public static final long NO_LIMIT = -1;
    /** Free memory stays until a request or a trim takes it. */
    public static final long DECOMMIT_NEVER = -1;
    /** The value of GMM_DECOMMIT_AFTER_MS in the environment, else never. */
    public static final long DECOMMIT_DEFAULT = 0;
    /** Bytes of an IPC handle. */
    public static final int IPC_HANDLE_SIZE = 256;

    private final Call.OfContext callbacks;
    private final long callbacksAddress;

    private Context(Handle handle, Call.OfContext callbacks, long callbacksAddress) {
        super(handle);
        this.callbacks = callbacks;
        this.callbacksAddress = callbacksAddress;
    }

    /**
     * Opens the backend that the environment variable GMM_BACKEND names, else cuda when a driver and a device answer,
     * else host.
     */
    public static Context open() {
        return open(new ContextOptions());
    }

    /** Opens this backend. */
    public static Context open(Backend backend) {
        return open(new ContextOptions().backend(backend));
    }

    /** Opens a context with these options. */
    public static Context open(ContextOptions options) {
        Call.OfContext callbacks = new Call.OfContext(options.logger);
        long[] callbacksAddress = new long[1];
        Handle handle = Handle.child("context", null, callbacks, (none, user, out) -> {
            callbacksAddress[0] = user;
            Native.gmm_context_create(options.encode(options.logger == null ? 0 : user), out);
            Native.gmm_context_set_oom_handler(out[0], user); // collects garbage before it calls the program's handler
        }, Native::gmm_context_release);
        return new Context(handle, callbacks, callbacksAddress[0]);
    }

    /** The version of the library that is loaded, for example "1.0.0". */
    public static String version() {
        return Native.gmm_version_string();
    }

    /** The version of the interface that these classes were made for, for example "1.0.0". */
    public static String interfaceVersion() {
        return NativeConstants.GMM_VERSION_MAJOR + "." + NativeConstants.GMM_VERSION_MINOR + "."
            + NativeConstants.GMM_VERSION_PATCH;
    }

    /** Allocates `size` bytes of DEVICE memory on device 0, under the current tag, on the default stream. */
    public GmmBuffer alloc(long size) {
        return alloc(size, new AllocOptions());
    }

    /** Allocates `size` bytes of this kind on device 0, under the current tag, on the default stream. */
    public GmmBuffer alloc(long size, Kind kind) {
        return alloc(size, new AllocOptions().kind(kind));
    }

    /** Allocates `size` bytes. */
    public GmmBuffer alloc(long size, AllocOptions options) {
        Kind kind = options.kind != Kind.UNSPECIFIED ? options.kind : options.comm ? Kind.VMM : Kind.DEVICE;
        return GmmBuffer.allocated(handle, null, options.stream, size, kind, (stream, out) -> {
            allocate(handle.address(), size, options, stream, out);
        });
    }

    /** Allocates memory without an object; {@link #free} takes its address. */
    public long allocate(long size, AllocOptions options) {
        Text.checkSize("the size", size);
        long[] out = new long[1];
        handle.run(context -> options.stream.run(stream -> allocate(context, size, options, stream, out)));
        return out[0];
    }

    private static void allocate(long context, long size, AllocOptions options, long stream, long[] out) {
        Native.gmm_alloc(context, size, options.encode(), out);
        nameOrFree(context, options.name, stream, out[0]);
    }

    /** Names a new block, which is freed when that fails. */
    static void nameOrFree(long context, String name, long stream, long address) {
        try {
            if (name != null) {
                Native.gmm_name(context, address, name);
            }
        } catch (Throwable error) {
            Native.gmm_free(context, address, stream);
            throw error;
        }
    }

    static PointerInfo query(long context, long address) {
        byte[] info = PointerInfo.bytesForC();
        Native.gmm_query(context, address, info);
        return new PointerInfo(info);
    }

    /** Makes a heap, whose blocks share no extent with those of others. */
    public Heap heap(HeapOptions options) {
        return new Heap(handle, options);
    }

    /** Makes a stream on a device. */
    public Stream stream(int device) {
        return new Stream(handle, device);
    }

    /** Makes an event on a device. */
    public Event event(int device) {
        return Event.create(handle, device, false);
    }

    /** Makes an event on a device that other processes can wait for; see {@link Event#exportHandle}. */
    public Event ipcEvent(int device) {
        return Event.create(handle, device, true);
    }

    /**
     * The address of a direct ByteBuffer's bytes from its position on. It is good while the ByteBuffer is reachable.
     */
    public static long addressOf(ByteBuffer memory) {
        return Pin.addressOf(memory);
    }

    /**
     * Page-locks the bytes between the position and the limit of a direct ByteBuffer, and maps them for every device.
     * The pin keeps the ByteBuffer.
     */
    public Pin pin(ByteBuffer memory) {
        return Pin.create(handle, Pin.addressOf(memory), memory.remaining(), 0, false, memory);
    }

    /** Page-locks the program's own memory and maps it for every device. Close the pin before the memory is freed. */
    public Pin pin(long address, long size, int device, boolean readOnly) {
        Text.checkSize("the size", size);
        return Pin.create(handle, address, size, device, readOnly, null);
    }

    /** Makes a tag whose contents are dropped by a pause, or finds the tag of that name. */
    public Tag tag(String name) {
        return tag(name, null);
    }

    /** Makes a tag, or finds it; contents and priority must then agree with it. Higher priorities resume first. */
    public Tag tag(String name, Contents contents, int priority) {
        return tag(name, new TagOptions().contents(contents).priority(priority));
    }

    /** Makes a tag, or finds it; the options must then agree with it, unless they are null. */
    public Tag tag(String name, TagOptions options) {
        int[] out = new int[1];
        handle.run(context -> Native.gmm_tag_create(context, name, options == null ? null : options.encode(), out));
        return new Tag(this, out[0]);
    }

    /** The tag with this number, as {@link PointerInfo#tag} gives it. */
    public Tag tagByNumber(int number) {
        return new Tag(this, number);
    }

    /** The tags of the context in the order of their making. The first is {@link #defaultTag}. */
    public List<Tag> tags() {
        int[] count = new int[1];
        int[] numbers;
        do { // other threads may make tags between two calls
            numbers = new int[count[0] + 8];
            int[] list = numbers;
            handle.run(context -> Native.gmm_tag_list(context, list, list.length, count));
        } while (count[0] > numbers.length);
        List<Tag> found = new ArrayList<>();
        for (int i = 0; i < count[0]; ++i) {
            found.add(new Tag(this, numbers[i]));
        }
        return found;
    }

    /** The tag of memory that nobody tagged. */
    public Tag defaultTag() {
        return new Tag(this, 1);
    }

    /** Maps another process's memory for device 0. */
    public GmmBuffer importMemory(byte[] ipcHandle) {
        return importMemory(ipcHandle, 0, 0);
    }

    /** Maps another process's memory. A timeout of 0 means 5,000 ms. */
    public GmmBuffer importMemory(byte[] ipcHandle, int device, int timeoutMillis) {
        byte[] desc = new IpcImportOptions().device(device).timeoutMillis(timeoutMillis).encode();
        return GmmBuffer.imported(handle,
            (context, user, out) -> Native.gmm_ipc_import(context, ipcHandle, desc, out));
    }

    /**
     * Opens another process's event for a device. Its waits see the last record of the maker. A timeout of 0 means
     * 5,000 ms.
     */
    public Event importEvent(byte[] ipcHandle, int device, int timeoutMillis) {
        byte[] desc = new IpcImportOptions().device(device).timeoutMillis(timeoutMillis).encode();
        return new Event(handle, (context, user, out) -> Native.gmm_event_import(context, ipcHandle, desc, out));
    }

    /**
     * Maps memory that a process published by this name, on the device that it lies on. Waits for the name; a timeout
     * of 0 means 5,000 ms.
     */
    public GmmBuffer attach(String name, boolean readOnly, int timeoutMillis) {
        AttachOptions options = new AttachOptions().timeoutMillis(timeoutMillis);
        byte[] desc = (readOnly ? options.readOnly() : options).encode();
        return GmmBuffer.imported(handle, (context, user, out) -> Native.gmm_attach(context, name, desc, out));
    }

    /** The memory that is published on the machine. NOT_READY: no server runs, or none answers in this time. */
    public List<PublishedInfo> published(long timeoutMillis) {
        return listed(timeoutMillis, PublishedInfo::bytesForC, Native::gmm_published_list, PublishedInfo::new);
    }

    /**
     * Maps the allocation of `size` bytes behind a descriptor of another library. The descriptor stays the caller's.
     */
    public GmmBuffer importFd(int fd, FdType type, long size, int device) {
        byte[] desc = new IpcFdOptions().type(type).size(size).device(device).encode();
        return GmmBuffer.imported(handle, (context, user, out) -> Native.gmm_ipc_import_fd(context, fd, desc, out));
    }

    /**
     * Tells a handler what happens to memory or to a budget, until the watcher is closed. A cache of registrations lets
     * go of memory in time, and takes its new pages.
     */
    public Watcher watch(WatchOptions options, WatchHandler handler) {
        return Watcher.create(handle, options, handler);
    }

    /** Makes a lease. The call waits for nobody: the lease's thread finds the server of the machine, or starts it. */
    public Lease lease(LeaseOptions options) {
        return Lease.create(handle, options);
    }

    /**
     * The leases of the machine: an entry for each device that a lease uses, and one for a lease that uses none.
     * NOT_READY: no server runs, or none answers in this time.
     */
    public List<LeaseEntryInfo> leases(long timeoutMillis) {
        return listed(timeoutMillis, LeaseEntryInfo::bytesForC, Native::gmm_lease_list, LeaseEntryInfo::new);
    }

    private interface Lister {
        int list(long context, long index, long timeoutMillis, byte[] entry);
    }

    private <T> List<T> listed(long timeoutMillis, Supplier<byte[]> bytes, Lister lister, Function<byte[], T> from) {
        Text.checkSize("the timeout", timeoutMillis);
        return handle.get(context -> {
            List<T> found = new ArrayList<>();
            byte[] entry = bytes.get();
            while (lister.list(context, found.size(), timeoutMillis, entry) == Result.OK.value()) {
                found.add(from.apply(entry));
                entry = bytes.get();
            }
            return found;
        });
    }

    /**
     * Sets the handler that is called when memory is short, also after garbage was collected; null removes it. A
     * handler that refers to the context keeps it from the garbage collector.
     */
    public void setOomHandler(OomHandler handler) {
        callbacks.oomHandler = handler;
        handle.run(context -> Native.gmm_context_set_oom_handler(context, callbacksAddress)); // waits for one that runs
    }

    /** Writes a JSON object that describes every heap, extent and live block. */
    public void snapshot(SnapshotWriter writer) {
        Call call = writer == null ? null : (first, second, piece) -> writer.write(piece);
        withSnapshot(null, snapshot -> Call.during(call, user -> Native.gmm_snapshot_write(snapshot, user)));
    }

    /** A JSON object that describes every heap, extent and live block. */
    public String snapshot() {
        return textOf(this::snapshot);
    }

    /** The bytes, counts and times of the context as Prometheus text. */
    public String metrics() {
        return textOf(writer -> {
            Call call = (first, second, piece) -> writer.write(piece);
            handle.run(context -> Call.during(call, user -> Native.gmm_metrics_write(context, user)));
        });
    }

    private static String textOf(Consumer<SnapshotWriter> write) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        write.accept(piece -> {
            text.write(piece, 0, piece.length);
            return true;
        });
        return new String(text.toByteArray(), StandardCharsets.UTF_8);
    }

    /** The live blocks of the context, copied at one moment for each heap. */
    public List<BlockInfo> blocks() {
        return blocks(null);
    }

    /** The live blocks of a scope, copied at one moment for each heap. */
    public List<BlockInfo> blocks(Scope scope) {
        List<BlockInfo> found = new ArrayList<>();
        withSnapshot(scope, snapshot -> {
            byte[] all = SnapshotInfo.bytesForC();
            Native.gmm_snapshot_query(snapshot, all);
            long count = new SnapshotInfo(all).blockCount();
            byte[] info = BlockInfo.bytesForC();
            for (long i = 0; i < count; ++i) {
                Native.gmm_snapshot_query_block(snapshot, i, info);
                found.add(new BlockInfo(info));
            }
        });
        return found;
    }

    private void withSnapshot(Scope scope, LongConsumer operation) {
        handle.run(context -> {
            long[] snapshot = new long[1];
            Native.gmm_snapshot_create(context, scope == null ? null : scope.encode(), snapshot);
            try {
                operation.accept(snapshot[0]);
            } finally {
                Native.gmm_snapshot_destroy(snapshot[0]);
            }
        });
    }

    /**
     * Frees everything that was allocated from the context, live blocks too. Imports and pins stay. Buffers that are
     * still open can then only be closed, and their views must not be touched. No other thread may be inside a call on
     * the context.
     */
    public void reset() {
        handle.run(Native::gmm_reset);
        handle.nextGeneration();
    }

    /** Defers the expensive work of frees until the returned object is closed. Deferrals nest. */
    public Deferral defer() {
        handle.run(Native::gmm_defer_begin);
        return new Deferral(handle);
    }

    /** One deferral. The end of the last one does the deferred work. */
    public static final class Deferral extends Once {
        private Deferral(Handle context) {
            super(() -> context.run(Native::gmm_defer_end));
        }
    }

    /** The context's address, for the low layer. */
    long address() {
        return handle.address();
    }

    /**
     * Closes the context, which takes no more calls. The backend ends, and all memory goes back, with the last object
     * made from it. Inside the handler of a watcher it is BUSY, and the context stays open. Closing twice does nothing.
     */
    @Override
    public void close() {
        Call.Watch.checkOutside("Context.close()", false);
        super.close();
    }

    @Override
    String describe() {
        ContextInfo info = info();
        Statistics now = statistics();
        return info.backendName() + ", " + info.deviceCount() + " devices, " + now.liveBlocks() + " blocks of "
            + Text.size(now.liveBytes()) + " live, " + Text.size(now.reservedBytes()) + " reserved";
    }
}
