/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What an out-of-memory handler learns. */
public final class OomInfo {
    private final int device;
    private final Kind kind;
    private final int tag;
    private final long requested;
    private final long reserved;
    private final int attempt;
    private final Result cause;

    OomInfo(int device, Kind kind, int tag, long requested, long reserved, int attempt, Result cause) {
        this.device = device;
        this.kind = kind;
        this.tag = tag;
        this.requested = requested;
        this.reserved = reserved;
        this.attempt = attempt;
        this.cause = cause;
    }

    /** The device whose memory is exhausted. */
    public int device() {
        return device;
    }

    /** The requested kind. */
    public Kind kind() {
        return kind;
    }

    /** The tag's number. */
    public int tag() {
        return tag;
    }

    /** Bytes of the allocation. */
    public long requested() {
        return requested;
    }

    /** The bytes that the context holds on the device. */
    public long reserved() {
        return reserved;
    }

    /** The number of this call for the allocation, from 1. */
    public int attempt() {
        return attempt;
    }

    /** OUT_OF_MEMORY, OUT_OF_HOST_MEMORY or LIMIT_EXCEEDED. */
    public Result cause() {
        return cause;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
