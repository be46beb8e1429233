/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The severity of a log message. */
public enum LogLevel {
    /** Something failed and could not be reported through an exception. */
    ERROR(1),
    /** Something works, but not as well as asked. */
    WARNING(2),
    /** The chosen backend and devices. */
    INFO(3),
    /** Details. */
    DEBUG(4);

    private final int value;

    LogLevel(int value) {
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
    static LogLevel of(int value) {
        for (LogLevel each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("LogLevel has no constant " + value);
    }
}
