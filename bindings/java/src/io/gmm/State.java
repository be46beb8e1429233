/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The state of an address. */
public enum State {
    /** Not memory of this context. */
    UNKNOWN(0),
    /** The memory is usable. */
    ACTIVE(1),
    /** The address is kept; the memory is gone until a resume. */
    PAUSED(2),
    /** The address lies in memory that gmm holds, in no live block. */
    FREE(3),
    /** Another process's memory. */
    IMPORTED(4),
    /** The program's own memory, page-locked. */
    PINNED(5),
    /** Some of a block or tag is usable, and some paused. */
    PARTLY_PAUSED(6),
    /** The memory is imported, and its exporter has revoked it by a forced pause. */
    REVOKED(7);

    private final int value;

    State(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /**
     * The constant with that number; Throws Throws IllegalArgumentException for a number that this release does not
     * know.
     */
    static State of(int value) {
        for (State each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("State has no constant " + value);
    }
}
