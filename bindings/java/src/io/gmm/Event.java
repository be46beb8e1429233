/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A point in a stream's order. An event of another process can be imported; only its maker records it. */
public final class Event implements AutoCloseable {
    private static final long FOREVER = -1; // GMM_FOREVER, without a sign

    private final Handle handle;

    private Event(Handle handle) {
        this.handle = handle;
        handle.guard(this);
    }

    static Event create(Handle context, int device, boolean shared) {
        EventOptions options = new EventOptions().device(device);
        byte[] desc = (shared ? options.shared() : options).encode();
        return make(context, (native_, user, out) -> Native.gmm_event_create(native_, desc, out));
    }

    static Event imported(Handle context, byte[] ipcHandle, int device, int timeoutMillis) {
        byte[] desc = new IpcImportOptions().device(device).timeoutMillis(timeoutMillis).encode();
        return make(context, (native_, user, out) -> Native.gmm_event_import(native_, ipcHandle, desc, out));
    }

    private static Event make(Handle context, Handle.Maker maker) {
        return new Event(Handle.child("event", context, null, maker, Native::gmm_event_destroy));
    }

    Handle handle() {
        return handle;
    }

    /** Records what is queued on the stream so far. */
    public void record(Stream stream) {
        handle.run(address -> stream.run(on -> Native.gmm_event_record(address, 0, on)));
    }

    /** Blocks until the event has passed. An event that was never recorded has passed. */
    public void synchronize() {
        handle.run(address -> Native.gmm_event_synchronize(address, 0, FOREVER));
    }

    /** Whether the event has passed. */
    public boolean query() {
        long[] out = new long[1];
        handle.run(address -> Native.gmm_event_query(address, out));
        return out[0] != 0;
    }

    /**
     * A handle of an event of {@link Context#ipcEvent}: bytes to send to another process of the same user, for {@link
     * Context#importEvent}. The event must stay open until it is imported.
     */
    public byte[] exportHandle() {
        byte[] out = new byte[Context.IPC_HANDLE_SIZE];
        long address = handle.acquire();
        try {
            Native.gmm_event_export(address, out);
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

    @Override
    public String toString() {
        return handle.isClosed() ? "Event[closed]" : "Event[0x" + Long.toHexString(handle.address()) + "]";
    }
}
