/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The end of something that was begun, which close() brings once. An end that throws may be tried again. */
abstract class Once implements AutoCloseable {
    private final Runnable end;
    private boolean closed;

    Once(Runnable end) {
        this.end = end;
    }

    /** Closing twice does nothing. */
    @Override
    public synchronized void close() {
        if (!closed) {
            end.run();
            closed = true;
        }
    }
}
