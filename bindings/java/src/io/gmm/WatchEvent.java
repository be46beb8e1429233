/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a watcher is told. */
public enum WatchEvent {
    /** The memory is about to lose its pages. Nothing has happened yet. A refusal ends the operation with BUSY. */
    PREPARE(1),
    /** The devices are idle, and the pages go after the answer. The contents are still there. */
    LOSING(2),
    /** The memory has pages again, with the contents that its tag keeps. */
    RESTORED(4),
    /** The operation has ended without effect. */
    FAILED(8),
    /** The budget of the device has fallen below {@link WatchOptions#budget}. */
    BUDGET(16);

    private final int value;

    WatchEvent(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }

    /** The constant with that number; null for one that this release does not know. */
    static WatchEvent of(int value) {
        for (WatchEvent each : values()) {
            if (each.value == value) {
                return each;
            }
        }
        return null;
    }
}
