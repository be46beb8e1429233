/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Hints about managed memory. */
public enum Advice {
    /** Mostly read: each location may keep a copy. */
    SET_READ_MOSTLY(1),
    /** Undoes SET_READ_MOSTLY. */
    UNSET_READ_MOSTLY(2),
    /** Pages stay at the location where possible. */
    SET_PREFERRED_LOCATION(3),
    /** Undoes SET_PREFERRED_LOCATION. */
    UNSET_PREFERRED_LOCATION(4),
    /** The location keeps a mapping of the pages. */
    SET_ACCESSED_BY(5),
    /** Undoes SET_ACCESSED_BY. */
    UNSET_ACCESSED_BY(6);

    private final int value;

    Advice(int value) {
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
    static Advice of(int value) {
        for (Advice each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Advice has no constant " + value);
    }
}
