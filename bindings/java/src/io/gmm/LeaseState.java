/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Who may have the memory of a lease's offered tags: IN_USE, the program alone; else others, too. */
public enum LeaseState {
    /** It has asked for nothing, or has released. */
    IDLE(0),
    /** A request waits for the turn. */
    WAITING(1),
    /** The program has its memory until {@link Lease#release}. */
    IN_USE(2);

    private final int value;

    LeaseState(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number; null for one that this release does not know. */
    static LeaseState of(int value) {
        for (LeaseState each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        return null;
    }
}
