/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Weight of a log message. */
public enum LogLevel {
    /** Something failed and could not be reported through an exception. */
    ERROR(1),
    /** Something works, but not as well as asked. */
    WARNING(2),
    /** Which backend and device were taken. */
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

    /** The constant with that number; IllegalArgumentException for a number that this release does not know. */
    static LogLevel of(int value) {
        for (LogLevel each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        throw new IllegalArgumentException("LogLevel has no constant " + value);
    }
}
