/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

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
public final class GmmBuffer extends BufferCalls {
    /** A call that allocates on a stream and writes the address into out[0]. */
    interface Allocation {
        void allocate(long stream, long[] out);
    }

    private final FreeOn freeOn;
    private final Kind kind;
    private Segments segments;

    /** freeOn: null for an import. */
    private GmmBuffer(Handle handle, Handle context, FreeOn freeOn, long size, Kind kind) {
        super(handle, context, size, freeOn == null);
        this.freeOn = freeOn;
        this.kind = kind;
    }

    /** `heap` may be null. The buffer holds a reference to each of the three until it is freed. */
    static GmmBuffer allocated(Handle context, Handle heap, Stream stream, long size, Kind kind,
        Allocation allocation) {
        Text.checkSize("the size", size);
        FreeOn freeOn = new FreeOn(stream);
        int born = context.generation();
        try {
            Handle handle = Handle.child("buffer", heap != null ? heap : context, null,
                (parent, user, out) -> allocation.allocate(freeOn.stream(), out), address -> {
                    try {
                        // A reset has freed the block already, and its address may be another's by now.
                        if (context.generation() == born) {
                            Native.gmm_free(context.address(), address, freeOn.stream());
                        }
                    } finally {
                        freeOn.release();
                    }
                });
            return new GmmBuffer(handle, context, freeOn, size, kind);
        } catch (Throwable error) {
            freeOn.release();
            throw error;
        }
    }

    static GmmBuffer imported(Handle context, Handle.Maker maker) {
        Handle handle = Handle.child("buffer", context, null, maker,
            address -> Native.gmm_ipc_close(context.address(), address));
        try {
            PointerInfo info = handle.get(address -> Context.query(context.address(), address));
            return new GmmBuffer(handle, context, null, info.base() + info.size() - handle.address(), info.kind());
        } catch (RuntimeException error) {
            handle.close();
            throw error;
        }
    }

    /** The address in the C interface. */
    public long address() {
        long address = acquire();
        handle.release();
        return address;
    }

    /** The requested size in bytes. */
    public long size() {
        return size;
    }

    /** The kind of memory. */
    public Kind kind() {
        return kind;
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
            return viewOf(address + offset, length);
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

    /** Parts of a ByteBuffer keep it, and it keeps this buffer. */
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
        through(offset, source, (context, self, array) -> {
            Native.gmm_copy(context, self, array, source.length, ownStream());
            Native.gmm_stream_synchronize(context, ownStream());
        });
    }

    /** Copies from the buffer into a new array and waits for the copy. It works for every kind. */
    public byte[] read(long offset, int length) {
        check(offset, length);
        return through(offset, new byte[length], (context, self, array) -> {
            Native.gmm_copy(context, array, self, length, ownStream());
            Native.gmm_stream_synchronize(context, ownStream());
        });
    }

    /** A call with the addresses of a part of the buffer and of an array's bytes. */
    private interface ArrayCall {
        void run(long context, long self, long array);
    }

    /** Runs a call with a copy of an array, which the collector would move. Returns what is there afterwards. */
    private byte[] through(long offset, byte[] array, ArrayCall call) {
        check(offset, array.length);
        ByteBuffer direct = ByteBuffer.allocateDirect(array.length).put(array).flip();
        run((context, self) -> call.run(context, self + offset, Pin.addressOf(direct)));
        byte[] result = new byte[array.length];
        direct.get(result);
        return result;
    }

    /** Queues a copy of `length` bytes from another buffer. Both must stay open until the stream has done the copy. */
    public void copyFrom(long offset, GmmBuffer source, long sourceOffset, long length, Stream stream) {
        check(offset, length);
        source.check(sourceOffset, length);
        source.run((context, from) -> run((own, to) -> stream.run(
            on -> Native.gmm_copy(own, to + offset, from + sourceOffset, length, on))));
    }

    /** Queues a fill of the whole buffer with one byte value, in the order of the stream on which it was allocated. */
    public void fill(int value) {
        run((context, self) -> Native.gmm_fill(context, self, value, size, ownStream()));
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
        long address = acquire();
        try {
            return Slices.await(timeout, unit, millis ->
                Native.gmm_resume_wait(context.address(), address + offset, length, millis)
                    != Result.NOT_READY.value());
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
        return through(offset, new byte[length],
            (context, self, array) -> Native.gmm_backup_read(context, self, length, array));
    }

    /**
     * The kept contents of a part of the paused buffer as a view, without a copy where they lie in one piece. The view
     * is good until the memory is resumed without {@link PauseOptions#retain}, freed or discarded, and must not be
     * touched afterwards.
     */
    public ByteBuffer backupView(long offset, int length) {
        check(offset, length);
        long[] out = new long[1];
        run((context, self) -> Native.gmm_backup_map(context, self + offset, length, out));
        return viewOf(out[0], length).asReadOnlyBuffer().order(ByteOrder.nativeOrder());
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
        run((context, self) -> Native.gmm_ipc_export_fd(context, self, type.value(), bytes));
        IpcFdInfo info = new IpcFdInfo(bytes);
        return new ExportedFd(info.fd(), info.offset(), info.size());
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

    private long ownStream() {
        return freeOn == null ? 0 : freeOn.stream();
    }

    /** The stream that a buffer is freed on, which it holds a reference to. */
    private static final class FreeOn {
        private final Thread thread = Thread.currentThread();
        private Stream stream;
        private long address;
        private boolean released;

        FreeOn(Stream stream) {
            this.stream = stream;
            this.address = stream.acquire();
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

    @Override
    String describe() {
        PointerInfo info = query();
        return Text.size(size) + " at " + Struct.hex(address()) + ", " + info.kind() + " of device " + info.device()
            + ", " + info.state();
    }
}
