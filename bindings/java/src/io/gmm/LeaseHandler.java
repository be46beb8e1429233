/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Hears that others want what a lease has in use, at once and then every second while they wait. It runs on the lease's
 * thread and returns soon. It may call {@link Lease#release}, or make the program come to the end of its turn.
 * Requests, the end of a lease, and waits for tickets of leases are BUSY there.
 *
 * <p>Its exceptions go to the thread's handler of uncaught exceptions.
 */
@FunctionalInterface
public interface LeaseHandler {
    /** Takes the lease that is in use, and who waits. */
    void asked(Lease lease, LeaseAsk ask);
}
