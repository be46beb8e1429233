/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A stream of the backend: work queued on one stream runs in order. */
public final class Stream implements AutoCloseable {
    /** The default stream, the same as LEGACY. */
    public static final Stream DEFAULT = new Stream(0);
    /** The one legacy default stream of the device. */
    public static final Stream LEGACY = new Stream(1);
    /** The calling thread's own default stream. */
    public static final Stream PER_THREAD = new Stream(2);

    /** Null for streams that gmm did not make. */
    private final Handle handle;
    private final Handle context;
    private final long foreign;

    private Stream(long foreign) {
        this.handle = null;
        this.context = null;
        this.foreign = foreign;
    }

    private Stream(Handle handle, Handle context) {
        this.handle = handle;
        this.context = context;
        this.foreign = 0;
        handle.guard(this);
    }

    /** A CUstream or cudaStream_t of the program, by its address. Closing this object does nothing to it. */
    public static Stream of(long address) {
        return address == 0 ? DEFAULT : address == 1 ? LEGACY : address == 2 ? PER_THREAD : new Stream(address);
    }

    static Stream create(Handle context, int device) {
        return new Stream(Handle.child("stream", context, null, (native_, user, out) -> {
            try (gmm_stream_desc desc = new gmm_stream_desc()) {
                desc.setDevice(device);
                Native.gmm_stream_create(native_, desc, out);
            }
        }, address -> Native.gmm_stream_destroy(context.address(), address)), context);
    }

    /** The stream's address in the C interface. */
    public long address() {
        long address = acquire();
        release();
        return address;
    }

    /**
     * Blocks until everything queued on this stream so far is done. Only for streams made by {@link Context#stream}.
     */
    public void synchronize() {
        long address = owned().acquire();
        try {
            Native.gmm_stream_synchronize(context.address(), address);
        } finally {
            handle.release();
        }
    }

    /** Makes this stream's further work wait for the event. The caller does not wait. */
    public void waitFor(Event event) {
        long address = owned().acquire();
        try {
            long target = event.handle().acquire();
            try {
                Native.gmm_stream_wait_event(context.address(), address, target, 0);
            } finally {
                event.handle().release();
            }
        } finally {
            handle.release();
        }
    }

    /**
     * Queues a call of the task. The task runs on a thread of the backend and must not call gmm. What it throws goes to
     * that thread's handler of uncaught exceptions.
     */
    public void call(Runnable task) {
        long address = owned().acquire();
        try {
            Native.gmm_stream_call(context.address(), address, java.util.Objects.requireNonNull(task));
        } finally {
            handle.release();
        }
    }

    /**
     * Waits for the stream's work and ends it once every buffer that was allocated on it is closed. Closing twice does
     * nothing.
     */
    @Override
    public void close() {
        if (handle != null) {
            handle.close();
        }
    }

    private Handle owned() {
        if (handle == null) {
            throw new UnsupportedOperationException(
                "this stream was not made by a context: use the context's method that takes a stream");
        }
        return handle;
    }

    /** The address, which is good until release(). */
    long acquire() {
        return handle == null ? foreign : handle.acquire();
    }

    void release() {
        if (handle != null) {
            handle.release();
        }
    }

    @Override
    public String toString() {
        try {
            return this == DEFAULT ? "Stream[default]"
                : this == LEGACY ? "Stream[legacy default]"
                : this == PER_THREAD ? "Stream[per-thread default]" : "Stream[0x" + Long.toHexString(address()) + "]";
        } catch (RuntimeException closed) {
            return "Stream[closed]";
        }
    }
}
