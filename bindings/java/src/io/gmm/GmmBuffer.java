/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.TimeUnit;

/**
 * A block of memory, allocated here or imported from another process. Closing it frees it; a forgotten one is freed
 * after the garbage collector has found it. It keeps its context, heap and stream alive.
 *
 * <p>The views of {@link #bytes} and {@link #slice} keep a forgotten buffer from being freed as long as they are
 * reachable. They do not hold back {@link #close}, a pause or a reset: touching a view of closed or paused memory
 * crashes the virtual machine. The segments of {@link #as} end with {@link #close}, which makes a later touch an
 * IllegalStateException.
 */
public final class GmmBuffer implements AutoCloseable {
    /** A call that allocates on a stream and writes the address into out[0]. */
    interface Allocation {
        void allocate(long stream, long[] out);
    }

    private final Handle handle;
    private final Handle context;
    private final FreeOn freeOn;
    private final int generation;
    private final long size;
    private final Kind kind;
    private WeakReference<ByteBuffer> view;
    private Segments segments;

    private GmmBuffer(Handle handle, Handle context, FreeOn freeOn, long size, Kind kind) {
        this.handle = handle;
        this.context = context;
        this.freeOn = freeOn;
        this.generation = context.generation();
        this.size = size;
        this.kind = kind;
        handle.guard(this);
    }

    /** `heap` may be null. The buffer holds a reference to each of the three until it is freed. */
    static GmmBuffer allocated(Handle context, Handle heap, Stream stream, long size, Kind kind,
        Allocation allocation) {
        Text.checkSize("the size", size);
        Handle parent = heap != null ? heap : context;
        parent.acquire();
        long on;
        try {
            on = stream.acquire();
        } catch (RuntimeException error) {
            parent.release();
            throw error;
        }
        boolean made = false;
        try {
            long[] out = new long[1];
            allocation.allocate(on, out);
            made = true;
            FreeOn freeOn = new FreeOn(stream, on);
            long native_ = context.address();
            int born = context.generation();
            return new GmmBuffer(new Handle("buffer", out[0], address -> {
                try {
                    // A reset has freed the block already, and its address may be another's by now.
                    if (context.generation() == born) {
                        Native.gmm_free(native_, address, freeOn.stream());
                    }
                } finally {
                    freeOn.release();
                    parent.release();
                }
            }), context, freeOn, size, kind);
        } finally {
            if (!made) {
                stream.release();
                parent.release();
            }
        }
    }

    /** A call that maps memory and writes the address into out[0]. */
    private interface Import {
        void map(long context, long[] out);
    }

    static GmmBuffer imported(Handle context, byte[] ipcHandle, int device, int timeoutMillis) {
        byte[] desc = new IpcImportOptions().device(device).timeoutMillis(timeoutMillis).encode();
        return imported(context, (native_, out) -> Native.gmm_ipc_import(native_, ipcHandle, desc, out));
    }

    static GmmBuffer imported(Handle context, int fd, FdType type, long size, int device) {
        byte[] desc = new IpcFdOptions().type(type).size(size).device(device).encode();
        return imported(context, (native_, out) -> Native.gmm_ipc_import_fd(native_, fd, desc, out));
    }

    private static GmmBuffer imported(Handle context, Import how) {
        long native_ = context.acquire();
        boolean made = false;
        try {
            long[] out = new long[1];
            how.map(native_, out);
            made = true;
            Handle handle = new Handle("buffer", out[0], address -> {
                try {
                    Native.gmm_ipc_close(native_, address);
                } finally {
                    context.release();
                }
            });
            PointerInfo info;
            try {
                info = Context.query(native_, out[0]);
            } catch (RuntimeException error) {
                handle.close();
                throw error;
            }
            return new GmmBuffer(handle, context, null, info.base() + info.size() - out[0], info.kind());
        } finally {
            if (!made) {
                context.release();
            }
        }
    }

    /** The address in the C interface. */
    public long address() {
        return get(address -> address);
    }

    /** The requested size in bytes. */
    public long size() {
        return size;
    }

    /** The kind of memory. */
    public Kind kind() {
        return kind;
    }

    /** Whether close() was called. */
    public boolean isClosed() {
        return handle.isClosed();
    }

    /**
     * The whole buffer as a direct ByteBuffer in native order, for memory that the CPU can reach, of at most 2^31-1
     * bytes.
     */
    public ByteBuffer bytes() {
        if (size > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("a ByteBuffer holds at most 2147483647 bytes, this buffer has " + size
                + ": use slice(offset, length)");
        }
        return slice(0, (int) size);
    }

    /** A part of the buffer as a direct ByteBuffer in native order, for memory that the CPU can reach. */
    public ByteBuffer slice(long offset, int length) {
        check(offset, length);
        long address = acquire();
        try {
            checkHostAccess(address);
            if (size > Integer.MAX_VALUE) {
                return viewOf(address + offset, length);
            }
            ByteBuffer part = wholeView(address);
            part.position((int) offset).limit((int) offset + length);
            return part.slice().order(ByteOrder.nativeOrder());
        } finally {
            handle.release();
        }
    }

    /** The whole buffer as a view of this type; see {@link #as(Class, long, long)}. */
    public <T> T as(Class<T> type) {
        return as(type, 0, size);
    }

    /**
     * A part of the buffer as a view of this type, for memory that the CPU can reach. The one type is
     * java.lang.foreign.MemorySegment, of Java 22 and newer: {@code buffer.as(MemorySegment.class, offset, length)}.
     *
     * <p>Closing the buffer ends its segments, and throws IllegalStateException while a native function has one. A
     * pause or a reset does not end them: touching a segment of such memory crashes the virtual machine.
     */
    public <T> T as(Class<T> type, long offset, long length) {
        if (!type.getName().equals("java.lang.foreign.MemorySegment")) {
            throw new IllegalArgumentException("a buffer is no " + type.getName()
                + ": as() takes MemorySegment.class, bytes() gives a ByteBuffer");
        }
        check(offset, length);
        long address = acquire();
        try {
            checkHostAccess(address);
            synchronized (this) {
                if (segments == null) {
                    if (handle.isClosed()) { // since acquire()
                        throw new IllegalStateException("this buffer is closed");
                    }
                    segments = new Segments(this, address, size);
                }
                return segments.as(type, offset, length);
            }
        } finally {
            handle.release();
        }
    }

    /** A duplicate of one root view. Parts of a ByteBuffer keep their root, and the root keeps this buffer. */
    private synchronized ByteBuffer wholeView(long address) {
        ByteBuffer root = view == null ? null : view.get();
        if (root == null) {
            root = viewOf(address, (int) size);
            view = new WeakReference<>(root);
        }
        return root.duplicate();
    }

    private ByteBuffer viewOf(long address, int length) {
        ByteBuffer made = Native.view(address, length).order(ByteOrder.nativeOrder());
        Handle.keepReachable(made, this);
        return made;
    }

    private void checkHostAccess(long address) {
        PointerInfo info = Context.query(context.address(), address);
        if (info.state() == State.PAUSED || info.state() == State.PARTLY_PAUSED) {
            throw new GmmException(Result.PAUSED, "a view of a buffer at 0x" + Long.toHexString(address)
                + " was asked for; it is paused: resume its tag first");
        }
        if (!info.hostAccessible()) {
            throw new GmmException(Result.NOT_SUPPORTED, "a view of a buffer at 0x" + Long.toHexString(address)
                + " was asked for; the CPU cannot reach "
                + kind + " memory of this device: copy it with copyTo() instead");
        }
    }

    /** Copies from an array into the buffer and waits for the copy. It works for every kind. */
    public void write(long offset, byte[] source) {
        check(offset, source.length);
        ByteBuffer through = ByteBuffer.allocateDirect(source.length);
        through.put(source).flip();
        copyFrom(offset, through, source.length, true);
    }

    /** Copies from the buffer into a new array and waits for the copy. It works for every kind. */
    public byte[] read(long offset, int length) {
        check(offset, length);
        ByteBuffer through = ByteBuffer.allocateDirect(length);
        copyFrom(offset, through, length, false);
        byte[] result = new byte[length];
        through.get(result);
        return result;
    }

    private void copyFrom(long offset, ByteBuffer host, int length, boolean toBuffer) {
        long address = acquire();
        try {
            long native_ = context.address();
            long stream = ownStream();
            long there = Pin.addressOf(host);
            Native.gmm_copy(native_, toBuffer ? address + offset : there, toBuffer ? there : address + offset, length,
                stream);
            Native.gmm_stream_synchronize(native_, stream);
        } finally {
            handle.release();
            Reference.reachabilityFence(host);
        }
    }

    /** Queues a copy of `size` bytes from another buffer. Both must stay open until the stream has done the copy. */
    public void copyFrom(long offset, GmmBuffer source, long sourceOffset, long length, Stream stream) {
        check(offset, length);
        source.check(sourceOffset, length);
        source.with(stream, (native_, from, on) -> get(
            to -> Native.gmm_copy(context.address(), to + offset, from + sourceOffset, length, on)));
    }

    /** Queues a fill with one byte value. */
    public void fill(long offset, long length, int value, Stream stream) {
        check(offset, length);
        with(stream, (native_, address, on) -> Native.gmm_fill(native_, address + offset, value, length, on));
    }

    /** Queues a fill of the whole buffer with one byte value, in the order of the stream on which it was allocated. */
    public void fill(int value) {
        get(address -> Native.gmm_fill(context.address(), address, value, size, ownStream()));
    }

    /**
     * Records that the stream uses the buffer too. After the free, its memory is not reused before the stream has done
     * the work that it had queued by then.
     */
    public void recordUse(Stream stream) {
        with(stream, (native_, address, on) -> Native.gmm_record_use(native_, address, on));
    }

    /** Names the buffer, for snapshots and the report of leaks; null takes the name away. */
    public void setName(String name) {
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_name(native_, address, name));
    }

    /** What the library knows about the address. */
    public PointerInfo query() {
        return get(address -> Context.query(context.address(), address));
    }

    /**
     * Gives a hint about the whole buffer, which must be MANAGED. The location is a device or {@link
     * Context#HOST_LOCATION}.
     */
    public void advise(Advice advice, int location) {
        with(Stream.DEFAULT,
            (native_, address, on) -> Native.gmm_advise(native_, address, 0, advice.value(), location));
    }

    /** Queues the migration of the whole buffer, which must be MANAGED. */
    public void prefetch(int location, Stream stream) {
        with(stream, (native_, address, on) -> Native.gmm_prefetch(native_, address, 0, location, on));
    }

    /** Moves the buffer; its address stays. A move to the host waits for it. */
    public void move(int location) {
        move(location, Stream.DEFAULT, false);
    }

    /** Moves the buffer, MANAGED or VMM, in the order of the stream; its address stays. */
    public void move(int location, Stream stream, boolean nonBlocking) {
        MoveOptions options = new MoveOptions().stream(stream);
        with(stream, (native_, address, on) -> Native.gmm_move(native_, address, location,
            (nonBlocking ? options.nonBlocking() : options).encode()));
    }

    /**
     * Resumes the buffer, and what shares pages of the driver with it. The rest of its tag stays paused. Returns the
     * bytes taken from the driver.
     */
    public long resume() {
        return resume(0, size);
    }

    /** Resumes a part of the buffer, and what shares pages of the driver with it. */
    public long resume(long offset, long length) {
        check(offset, length);
        long[] out = new long[1];
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_resume_range(native_, address + offset, length, out));
        return out[0];
    }

    /**
     * Waits until a resume by another caller has made the buffer usable. It starts none, and returns false on timeout.
     */
    public boolean waitReady(long timeout, TimeUnit unit) throws InterruptedException {
        return waitReady(0, size, timeout, unit);
    }

    /** Does the same as waitReady(), for a part of the buffer. */
    public boolean waitReady(long offset, long length, long timeout, TimeUnit unit) throws InterruptedException {
        check(offset, length);
        long start = System.nanoTime();
        long nanos = unit.toNanos(timeout);
        long address = acquire();
        try {
            for (;;) {
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                long left = nanos - (System.nanoTime() - start);
                long slice = left <= 0 ? 0 : Math.min(50, left / 1000000 + 1);
                if (Native.gmm_resume_wait(context.address(), address + offset, length, slice)
                    != Result.NOT_READY.value()) {
                    return true;
                }
                if (left <= 0) {
                    return false;
                }
            }
        } finally {
            handle.release();
        }
    }

    /**
     * The kept contents of a part of the paused buffer, which stays paused. After a resume with {@link
     * PauseOptions#retain} they are those of the last pause.
     */
    public byte[] backup(long offset, int length) {
        check(offset, length);
        ByteBuffer through = ByteBuffer.allocateDirect(length);
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_backup_read(native_, address + offset, length,
            Pin.addressOf(through)));
        byte[] result = new byte[length];
        through.get(result);
        return result;
    }

    /**
     * The kept contents of a part of the paused buffer as a view, without a copy where they lie in one piece. The view
     * is good until the memory is resumed without {@link PauseOptions#retain}, freed or discarded, and must not be
     * touched afterwards.
     */
    public ByteBuffer backupView(long offset, int length) {
        check(offset, length);
        long[] out = new long[1];
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_backup_map(native_, address + offset, length, out));
        return viewOf(out[0], length).asReadOnlyBuffer().order(ByteOrder.nativeOrder());
    }

    /**
     * A handle: bytes to send to another process of the same user, for {@link Context#importMemory}. The buffer must
     * stay open until it is imported.
     */
    public byte[] exportHandle() {
        byte[] out = new byte[Context.IPC_HANDLE_SIZE];
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_ipc_export(native_, address, out));
        return out;
    }

    /** Opens a file descriptor of the driver's allocation that the buffer lies in. */
    public ExportedFd exportFd() {
        return exportFd(FdType.DEFAULT);
    }

    /**
     * Opens a file descriptor of a type that the memory has: for {@link Context#importFd}, for Vulkan, or as a dma-buf.
     */
    public ExportedFd exportFd(FdType type) {
        byte[] bytes = IpcFdInfo.bytesForC();
        with(Stream.DEFAULT,
            (native_, address, on) -> Native.gmm_ipc_export_fd(native_, address, type.value(), bytes));
        IpcFdInfo info = new IpcFdInfo(bytes);
        return new ExportedFd(info.fd(), info.offset(), info.size());
    }

    /** The driver's own handle of DEVICE memory. The buffer must stay open until the other side has closed it. */
    public LegacyHandle exportLegacy() {
        byte[] info = LegacyHandle.bytesForC();
        with(Stream.DEFAULT, (native_, address, on) -> Native.gmm_ipc_export_legacy(native_, address, info));
        return new LegacyHandle(info);
    }

    /** Frees the memory in the order of the stream on which it was allocated. Closing twice does nothing. */
    @Override
    public synchronized void close() {
        endSegments();
        handle.close();
    }

    private void endSegments() {
        if (segments != null) {
            segments.close();
            segments = null;
        }
    }

    /** Frees the memory in the order of this stream. Closing twice does nothing. An imported buffer has no stream. */
    public synchronized void close(Stream stream) {
        if (freeOn == null) {
            throw new UnsupportedOperationException("an imported buffer is not freed on a stream: use close()");
        }
        endSegments();
        if (!handle.isClosed()) {
            freeOn.change(stream);
        }
        handle.close();
    }

    private long acquire() {
        long address = handle.acquire();
        if (freeOn != null && generation != context.generation()) {
            handle.release();
            throw new IllegalStateException("this buffer's memory went with a reset of its context");
        }
        return address;
    }

    private <T> T get(java.util.function.LongFunction<T> call) {
        long address = acquire();
        try {
            return call.apply(address);
        } finally {
            handle.release();
        }
    }

    private interface Operation {
        void run(long context, long address, long stream);
    }

    private void with(Stream stream, Operation operation) {
        get(address -> {
            stream.run(on -> operation.run(context.address(), address, on));
            return null;
        });
    }

    private long ownStream() {
        return freeOn == null ? 0 : freeOn.stream();
    }

    private void check(long offset, long length) {
        if (offset < 0 || length < 0 || offset > size - length) {
            throw new IndexOutOfBoundsException("bytes " + offset + " to " + (offset + length) + " of a buffer of "
                + size + " bytes");
        }
    }

    /** The stream that a buffer is freed on, which it holds a reference to. */
    private static final class FreeOn {
        private final Thread thread = Thread.currentThread();
        private Stream stream;
        private long address;
        private boolean released;

        FreeOn(Stream stream, long address) {
            this.stream = stream;
            this.address = address;
        }

        /** On another thread the per-thread stream is another one; the legacy stream is ordered behind them all. */
        synchronized long stream() {
            return address == 2 && Thread.currentThread() != thread ? 1 : address;
        }

        synchronized void change(Stream other) {
            if (released) {
                return;
            }
            long next = other.acquire();
            stream.release();
            stream = other;
            address = next;
        }

        synchronized void release() {
            released = true;
            stream.release();
        }
    }

    /** The size, the address and what the library knows about the memory. */
    @Override
    public String toString() {
        try {
            PointerInfo info = query();
            return "GmmBuffer[" + Text.size(size) + " at 0x" + Long.toHexString(address()) + ", " + info.kind()
                + " of device " + info.device() + ", " + info.state() + "]";
        } catch (RuntimeException closed) {
            return "GmmBuffer[closed]";
        }
    }
}
