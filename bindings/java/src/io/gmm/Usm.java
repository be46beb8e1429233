/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Who can use an address, in SYCL's words. */
public enum Usm {
    /** Not memory of any device. */
    UNKNOWN(0),
    /** The device only. */
    DEVICE(1),
    /** Host memory that devices reach. */
    HOST(2),
    /** Host and devices; the pages move. */
    SHARED(3);

    private final int value;

    Usm(int value) {
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
    static Usm of(int value) {
        for (Usm each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Usm has no constant " + value);
    }
}
