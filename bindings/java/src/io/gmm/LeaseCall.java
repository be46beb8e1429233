/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.WeakReference;

/** A caller's LeaseHandler as C calls it. It does not keep the lease, which ends when the program forgets it. */
final class LeaseCall {
    private static final ThreadLocal<Boolean> INSIDE = new ThreadLocal<>();

    private final LeaseHandler handler;
    private volatile WeakReference<Lease> lease;

    LeaseCall(LeaseHandler handler) {
        this.handler = handler;
    }

    void setLease(Lease value) {
        lease = new WeakReference<>(value);
    }

    /** Whether this thread runs the handler of a lease. */
    static boolean isInside() {
        return INSIDE.get() != null;
    }

    /** Throws BUSY inside a lease's handler, before the caller changes anything. */
    static void checkOutside(String what) {
        if (isInside()) {
            throw new GmmException(Result.BUSY,
                what + ": the caller is the handler of a lease; call it after the handler returned.");
        }
    }

    /** Ends a lease, or a ticket of one: C refuses that on the thread of a handler, which may have used it last. */
    static void end(Runnable end) {
        if (isInside()) {
            new Thread(end, "gmm lease").start();
        } else {
            end.run();
        }
    }

    /** Called from C. There is no caller to throw to, so an exception goes where that of a log callback goes. */
    boolean call(byte[] ask) {
        WeakReference<Lease> known = lease;
        Lease asked = known == null ? null : known.get();
        if (asked == null) {
            return true;
        }
        INSIDE.set(true);
        try {
            handler.asked(asked, new LeaseAsk(ask));
        } catch (Throwable error) {
            if (!(error instanceof IllegalStateException && asked.isClosed())) { // else closed under the handler
                Callbacks.uncaught(error);
            }
        } finally {
            INSIDE.remove();
        }
        return true;
    }
}
