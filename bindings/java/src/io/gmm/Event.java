/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A point in a stream's order. An event of another process can be imported; only its maker records it. Work that waits
 * for an event goes on waiting after its close.
 */
public final class Event extends EventCalls {
    private static final long FOREVER = -1; // GMM_FOREVER, without a sign

    Event(Handle context, Handle.Maker maker) {
        super(Handle.child("event", context, null, maker, Native::gmm_event_destroy));
    }

    static Event create(Handle context, int device, boolean shared) {
        EventOptions options = new EventOptions().device(device);
        byte[] desc = (shared ? options.shared() : options).encode();
        return new Event(context, (native_, user, out) -> Native.gmm_event_create(native_, desc, out));
    }

    /** Records the work that is queued on the stream so far. */
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
}
