/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Where a ticket's operation is. */
public enum TicketState {
    RUNNING,
    /** It has ended, with success or failure. */
    DONE,
    /** It waits for {@link Ticket#commit()} or {@link Ticket#cancel()}. */
    HELD;

    static TicketState of(long value) {
        return values()[(int) value];
    }
}
