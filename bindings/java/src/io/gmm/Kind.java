/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Kinds of memory. */
public enum Kind {
    /** In options it means DEVICE, in an answer memory that gmm does not know. */
    UNSPECIFIED(0),
    /** A driver allocation on the device. It has the driver's legacy IPC. */
    DEVICE(1),
    /** Mapped on the device: pausable, movable, exportable as a file descriptor. */
    VMM(2),
    /** Page-locked on the host, visible to every device. */
    HOST(3),
    /** One address for host and devices; the driver moves the pages. */
    MANAGED(4);

    private final int value;

    Kind(int value) {
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
    static Kind of(int value) {
        for (Kind each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Kind has no constant " + value);
    }
}
