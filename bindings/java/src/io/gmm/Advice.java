/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Hints about managed memory. */
public enum Advice {
    /** Mostly read: each location may keep a copy. */
    SET_READ_MOSTLY(1),
    /** Takes SET_READ_MOSTLY back. */
    UNSET_READ_MOSTLY(2),
    /** Pages stay at the location where they can. */
    SET_PREFERRED_LOCATION(3),
    /** Takes SET_PREFERRED_LOCATION back. */
    UNSET_PREFERRED_LOCATION(4),
    /** The location keeps a mapping of the pages. */
    SET_ACCESSED_BY(5),
    /** Takes SET_ACCESSED_BY back. */
    UNSET_ACCESSED_BY(6);

    private final int value;

    Advice(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number; IllegalArgumentException for a number that this release does not know. */
    static Advice of(int value) {
        for (Advice each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Advice has no constant " + value);
    }
}
