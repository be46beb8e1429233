/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a watcher is told about an event. Sizes are bytes. */
public final class WatchInfo {
    private final WatchEvent event;
    private final int tag;
    private final int device;
    private final long address;
    private final long size;
    private final long generation;
    private final long budgetBytes;
    private final long remainingMillis;
    private final Result cause;

    WatchInfo(WatchEvent event, int tag, int device, long address, long size, long generation, long budgetBytes,
        long remainingMillis, Result cause) {
        this.event = event;
        this.tag = tag;
        this.device = device;
        this.address = address;
        this.size = size;
        this.generation = generation;
        this.budgetBytes = budgetBytes;
        this.remainingMillis = remainingMillis;
        this.cause = cause;
    }

    /** The event. */
    public WatchEvent event() {
        return event;
    }

    /** The number of the memory's tag; 0 for BUDGET. */
    public int tag() {
        return tag;
    }

    /** The device of the watched range; else that of the options. */
    public int device() {
        return device;
    }

    /** The start of the watched range; 0 for a tag. */
    public long address() {
        return address;
    }

    /** Bytes of the watched range; 0 for a tag. */
    public long size() {
        return size;
    }

    /** The generation of the watched range, as {@link PointerInfo#generation} tells it; 0 for a tag. */
    public long generation() {
        return generation;
    }

    /** For BUDGET: what the budget is now; else 0. */
    public long budgetBytes() {
        return budgetBytes;
    }

    /** Milliseconds until the answer is too late; 0: the operation waits no more, or never did. */
    public long remainingMillis() {
        return remainingMillis;
    }

    /** For FAILED: the result of the operation; else OK. */
    public Result cause() {
        return cause;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
