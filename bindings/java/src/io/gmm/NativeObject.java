/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** An object of the library that the program closes, or the Cleaner after the program has forgotten it. */
abstract class NativeObject implements AutoCloseable {
    /** Null for streams that gmm did not make. */
    final Handle handle;

    NativeObject(Handle handle) {
        this.handle = handle;
        if (handle != null) {
            handle.guard(this);
        }
    }

    /** Whether close() was called. */
    public boolean isClosed() {
        return handle != null && handle.isClosed();
    }

    /** Ends the object once nothing needs it any more. Closing twice does nothing. */
    @Override
    public void close() {
        if (handle != null) {
            handle.close();
        }
    }

    /** The text of an open object. */
    String describe() {
        return "open";
    }

    @Override
    public String toString() {
        String shown = "closed";
        try {
            shown = isClosed() ? shown : describe();
        } catch (RuntimeException closed) {
            // by another thread, or with its context
        }
        return getClass().getSimpleName() + "[" + shown + "]";
    }
}
