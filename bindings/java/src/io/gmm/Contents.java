/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a pause does with the contents of a tag's memory. */
public enum Contents {
    /** The contents are dropped; after a resume the bytes are undefined. */
    DROP(0),
    /** The contents are kept in host memory. */
    HOST(1),
    /** The contents are kept in a nameless file under GMM_BACKUP_DIR (default /tmp). */
    FILE(2);

    private final int value;

    Contents(int value) {
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
    static Contents of(int value) {
        for (Contents each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Contents has no constant " + value);
    }
}
