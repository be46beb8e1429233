/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A watch of memory or of a budget, until close(). A watcher that nobody refers to any more ends, too, so the program
 * holds it. A handler that refers to its watcher keeps it from the garbage collector.
 */
public final class Watcher extends NativeObject {
    private Watcher(Handle handle) {
        super(handle);
    }

    static Watcher create(Handle context, WatchOptions options, WatchHandler handler) {
        if (handler == null) {
            throw new IllegalArgumentException("a watcher without a handler hears nothing");
        }
        return new Watcher(Handle.child("watcher", context, new Call.Watch(handler),
            (native_, user, out) -> Native.gmm_watch(native_, options.encode(user), out),
            Native::gmm_watcher_destroy)); // waits for the handler
    }

    /**
     * Ends the watch. It waits for the handler if that runs; afterwards nobody calls it. A handler that calls it gets
     * BUSY. Closing twice does nothing.
     */
    @Override
    public void close() {
        Call.Watch.checkOutside("Watcher.close()", false);
        super.close();
    }
}
