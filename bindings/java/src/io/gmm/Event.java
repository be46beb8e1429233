/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A point in a stream's order. */
public final class Event implements AutoCloseable {
    private final Handle handle;
    private final Handle context;

    private Event(Handle handle, Handle context) {
        this.handle = handle;
        this.context = context;
        handle.guard(this);
    }

    static Event create(Handle context, int device) {
        long native_ = context.acquire();
        boolean made = false;
        try {
            long[] out = new long[1];
            Native.gmm_event_create(native_, device, out);
            made = true;
            return new Event(new Handle("event", out[0], address -> {
                try {
                    Native.gmm_event_destroy(native_, address);
                } finally {
                    context.release();
                }
            }), context);
        } finally {
            if (!made) {
                context.release();
            }
        }
    }

    Handle handle() {
        return handle;
    }

    /** Sets the event to what is queued on the stream so far. */
    public void record(Stream stream) {
        long address = handle.acquire();
        try {
            long on = stream.acquire();
            try {
                Native.gmm_event_record(context.address(), address, on);
            } finally {
                stream.release();
            }
        } finally {
            handle.release();
        }
    }

    /** Blocks until the event has passed. An event never recorded has passed. */
    public void synchronize() {
        long address = handle.acquire();
        try {
            Native.gmm_event_synchronize(context.address(), address);
        } finally {
            handle.release();
        }
    }

    /** Whether the event has passed. */
    public boolean query() {
        long address = handle.acquire();
        try {
            int[] out = new int[1];
            Native.gmm_event_query(context.address(), address, out);
            return out[0] != 0;
        } finally {
            handle.release();
        }
    }

    /** Ends the event; work that waits for it still may. Closing twice does nothing. */
    @Override
    public void close() {
        handle.close();
    }
}
