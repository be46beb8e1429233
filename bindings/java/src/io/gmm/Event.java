/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A point in a stream's order. An event of another process can be imported; only its maker records it. */
public final class Event implements AutoCloseable {
    private final Handle handle;
    private final Handle context;

    private Event(Handle handle, Handle context) {
        this.handle = handle;
        this.context = context;
        handle.guard(this);
    }

    /** A call that makes an event and writes its address into out[0]. */
    private interface Maker {
        void make(long context, long[] out);
    }

    static Event create(Handle context, int device) {
        return make(context, (native_, out) -> Native.gmm_event_create(native_, device, out));
    }

    static Event createShared(Handle context, int device) {
        return make(context, (native_, out) -> Native.gmm_ipc_event_create(native_, device, out));
    }

    static Event imported(Handle context, byte[] ipcHandle, int device, int timeoutMillis) {
        try (gmm_ipc_import_desc desc = new gmm_ipc_import_desc()) {
            desc.setDevice(device);
            desc.setTimeout_ms(timeoutMillis);
            return make(context, (native_, out) -> Native.gmm_event_import(native_, ipcHandle, desc, out));
        }
    }

    private static Event make(Handle context, Maker maker) {
        long native_ = context.acquire();
        boolean made = false;
        try {
            long[] out = new long[1];
            maker.make(native_, out);
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

    /** Records what is queued on the stream so far. */
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

    /** Blocks until the event has passed. An event that was never recorded has passed. */
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

    /**
     * A handle of an event of {@link Context#ipcEvent}: bytes to send to another process of the same user, for {@link
     * Context#importEvent}. The event must stay open until it is imported.
     */
    public byte[] exportHandle() {
        byte[] out = new byte[Context.IPC_HANDLE_SIZE];
        long address = handle.acquire();
        try {
            Native.gmm_event_export(context.address(), address, out);
        } finally {
            handle.release();
        }
        return out;
    }

    /** Ends the event. Work that waits for it already goes on waiting. Closing twice does nothing. */
    @Override
    public void close() {
        handle.close();
    }
}
