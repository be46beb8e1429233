/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.Objects;
import java.util.function.LongConsumer;

/**
 * A stream of the backend: work queued on one stream runs in order. A stream that gmm made waits for its work and ends
 * once it and every buffer that was allocated on it are closed.
 */
public final class Stream extends NativeObject {
    /** The default stream, the same as LEGACY. */
    public static final Stream DEFAULT = new Stream(0);
    /** The one legacy default stream of the device. */
    public static final Stream LEGACY = new Stream(1);
    /** The calling thread's own default stream. */
    public static final Stream PER_THREAD = new Stream(2);

    private final Handle context;
    private final long external;

    private Stream(long external) {
        super(null);
        this.context = null;
        this.external = external;
    }

    Stream(Handle context, int device) {
        super(Handle.child("stream", context, null,
            (native_, user, out) -> Native.gmm_stream_create(native_, new StreamOptions().device(device).encode(), out),
            address -> Native.gmm_stream_destroy(context.address(), address)));
        this.context = context;
        this.external = 0;
    }

    /** A CUstream or cudaStream_t of the program, by its address. Closing this object does nothing to it. */
    public static Stream of(long address) {
        return address == 0 ? DEFAULT : address == 1 ? LEGACY : address == 2 ? PER_THREAD : new Stream(address);
    }

    /** The stream's address in the C interface. */
    public long address() {
        return handle == null ? external : handle.get(address -> address);
    }

    /**
     * Blocks until everything queued on this stream so far is done. Only for streams made by {@link Context#stream}.
     */
    public void synchronize() {
        owned().run(address -> Native.gmm_stream_synchronize(context.address(), address));
    }

    /** Makes this stream's further work wait for the event. The caller does not wait. */
    public void waitFor(Event event) {
        owned().run(address -> event.handle.run(
            target -> Native.gmm_stream_wait_event(context.address(), address, target, 0)));
    }

    /**
     * Queues a call of the task. The task runs on a thread of the backend and must not call gmm. Its exception goes to
     * that thread's handler of uncaught exceptions.
     */
    public void call(Runnable task) {
        Objects.requireNonNull(task);
        owned().run(address -> Call.Task.queue(context.address(), address, task));
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
        return handle == null ? external : handle.acquire();
    }

    /** The address, for a caller that holds a reference already. */
    long rawAddress() {
        return handle == null ? external : handle.address();
    }

    void run(LongConsumer call) {
        if (handle == null) {
            call.accept(external);
        } else {
            handle.run(call);
        }
    }

    void release() {
        if (handle != null) {
            handle.release();
        }
    }

    @Override
    String describe() {
        return this == DEFAULT ? "default"
            : this == LEGACY ? "legacy default" : this == PER_THREAD ? "per-thread default" : Struct.hex(address());
    }
}
