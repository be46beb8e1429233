/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A caller's WatchHandler as C calls it. */
final class WatchCall {
    private static final ThreadLocal<WatchEvent> INSIDE = new ThreadLocal<>();

    private final WatchHandler handler;

    WatchCall(WatchHandler handler) {
        this.handler = handler;
    }

    /**
     * Throws BUSY inside a watcher's handler, before the caller changes anything. budget: not in that of BUDGET, for
     * which no operation waits.
     */
    static void checkOutside(String what, boolean budget) {
        WatchEvent event = INSIDE.get();
        if (event != null && !(budget && event == WatchEvent.BUDGET)) {
            throw new GmmException(Result.BUSY,
                what + ": the caller is the handler of a watcher; call it on another thread.");
        }
    }

    /** Called from C. There is no caller to throw to, so an exception goes where that of a log callback goes. */
    boolean call(byte[] bytes) {
        WatchInfo info = new WatchInfo(bytes);
        if (info.event() == null) {
            return true; // of a newer library
        }
        INSIDE.set(info.event());
        try {
            return handler.hear(info);
        } catch (Throwable error) {
            Callbacks.uncaught(error);
            return false;
        } finally {
            INSIDE.remove();
        }
    }
}
