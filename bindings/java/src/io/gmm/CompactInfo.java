/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What {@link Context#compact} did. */
public final class CompactInfo {
    private final long movedBytes;
    private final long releasedBytes;
    private final long largestFree;

    CompactInfo(gmm_compact_info from) {
        this.movedBytes = from.getMoved_bytes();
        this.releasedBytes = from.getReleased_bytes();
        this.largestFree = from.getLargest_free();
    }

    /** Bytes of free memory that were mapped beside other free memory. */
    public long movedBytes() {
        return movedBytes;
    }

    /** Bytes that returned to the driver. */
    public long releasedBytes() {
        return releasedBytes;
    }

    /** Bytes of the largest free run. */
    public long largestFree() {
        return largestFree;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
