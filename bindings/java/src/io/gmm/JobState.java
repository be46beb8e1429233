/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a job did last. */
public enum JobState {
    /** Nothing yet. */
    IDLE(0),
    /** All ranks carry it out, or have done so. */
    COMMITTED(1),
    /** All ranks are as before it. */
    ABORTED(2),
    /**
     * This rank could not reach the exchange after it had agreed. Its memory is as before and may be used. The next
     * call of the same method goes on with the operation.
     */
    IN_DOUBT(3),
    /** A thread is in pause() or resume(). */
    RUNNING(4);

    private final int value;

    JobState(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number; null for one that this release does not know. */
    static JobState of(int value) {
        for (JobState each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        return null;
    }
}
