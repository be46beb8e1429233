/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What stands at an address. */
public enum State {
    /** Not memory of this context. */
    UNKNOWN(0),
    /** Usable. */
    ACTIVE(1),
    /** The address is kept, the memory is gone until a resume. */
    PAUSED(2),
    /** Inside memory that gmm holds, in no live block. */
    FREE(3),
    /** Another process's memory. */
    IMPORTED(4),
    /** The program's own memory, page-locked. */
    PINNED(5),
    /** A block over several pieces of memory, or a tag: some of it is usable, some paused. */
    PARTLY_PAUSED(6),
    /** Imported, but the exporter has taken it back by a forced pause. */
    REVOKED(7);

    private final int value;

    State(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number; IllegalArgumentException for a number that this release does not know. */
    static State of(int value) {
        for (State each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("State has no constant " + value);
    }
}
