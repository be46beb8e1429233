/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A caller's WatchHandler as C calls it. */
final class WatchCall {
    private static final ThreadLocal<Boolean> INSIDE = new ThreadLocal<>();

    private final WatchHandler handler;

    WatchCall(WatchHandler handler) {
        this.handler = handler;
    }

    /** Whether the calling thread is inside a watcher's handler. */
    static boolean isInside() {
        return INSIDE.get() != null;
    }

    /** Called from C. There is no caller to throw to, so an exception goes where that of a log callback goes. */
    boolean call(int event, int tag, int device, long address, long size, long generation, long budgetBytes,
        long remainingMillis, int cause) {
        WatchEvent known = WatchEvent.of(event);
        if (known == null) {
            return true; // of a newer library
        }
        INSIDE.set(true);
        try {
            return handler.hear(new WatchInfo(known, tag, device, address, size, generation, budgetBytes,
                remainingMillis, Result.of(cause)));
        } catch (Throwable error) {
            Callbacks.uncaught(error);
            return false;
        } finally {
            INSIDE.remove();
        }
    }
}
