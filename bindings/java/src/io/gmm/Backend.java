/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The backend of a context. */
public enum Backend {
    /** The backend that GMM_BACKEND names; else cuda when a driver and a device answer; else host. */
    AUTO(0),
    /** Ordinary memory of this machine; needs no GPU. */
    HOST(1),
    /** The CUDA driver, opened at run time. */
    CUDA(2),
    /** SYCL USM, by dpctl's C library; only when it is named. */
    SYCL(3);

    private final int value;

    Backend(int value) {
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
    static Backend of(int value) {
        for (Backend each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("Backend has no constant " + value);
    }
}
