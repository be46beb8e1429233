/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Counters of a scope. */
public final class Statistics {
    private final int liveTags;
    private final long liveBytes;
    private final long liveBlocks;
    private final long peakLiveBytes;
    private final long cachedBytes;
    private final long reservedBytes;
    private final long peakReservedBytes;
    private final long pausedBytes;
    private final long pinnedBytes;
    private final long importedBytes;
    private final long allocations;
    private final long frees;
    private final long failures;
    private final long extents;
    private final long backendCalls;
    private final long limitBytes;
    private final long foreignBytes;

    Statistics(gmm_stats_info from) {
        this.liveTags = from.getLive_tags();
        this.liveBytes = from.getLive_bytes();
        this.liveBlocks = from.getLive_blocks();
        this.peakLiveBytes = from.getPeak_live_bytes();
        this.cachedBytes = from.getCached_bytes();
        this.reservedBytes = from.getReserved_bytes();
        this.peakReservedBytes = from.getPeak_reserved_bytes();
        this.pausedBytes = from.getPaused_bytes();
        this.pinnedBytes = from.getPinned_bytes();
        this.importedBytes = from.getImported_bytes();
        this.allocations = from.getAllocations();
        this.frees = from.getFrees();
        this.failures = from.getFailures();
        this.extents = from.getExtents();
        this.backendCalls = from.getBackend_calls();
        this.limitBytes = from.getLimit_bytes();
        this.foreignBytes = from.getForeign_bytes();
    }

    /** Tags with memory in the scope. */
    public int liveTags() {
        return liveTags;
    }

    /** Bytes requested and not freed. */
    public long liveBytes() {
        return liveBytes;
    }

    /** Blocks not freed. */
    public long liveBlocks() {
        return liveBlocks;
    }

    /** The highest liveBytes at any growth of a heap or call of stats(). */
    public long peakLiveBytes() {
        return peakLiveBytes;
    }

    /** Bytes that are free and held for later allocations. */
    public long cachedBytes() {
        return cachedBytes;
    }

    /** Bytes held from the driver. */
    public long reservedBytes() {
        return reservedBytes;
    }

    /** The highest reservedBytes. */
    public long peakReservedBytes() {
        return peakReservedBytes;
    }

    /** Bytes of addresses without memory. */
    public long pausedBytes() {
        return pausedBytes;
    }

    /** Pinned bytes of the program's own memory; only in the scope of everything. */
    public long pinnedBytes() {
        return pinnedBytes;
    }

    /** Imported bytes of other processes' memory; only in the scope of everything. */
    public long importedBytes() {
        return importedBytes;
    }

    /** Allocations that succeeded. */
    public long allocations() {
        return allocations;
    }

    /** Blocks freed. */
    public long frees() {
        return frees;
    }

    /** Allocations that failed because memory or a limit was short. */
    public long failures() {
        return failures;
    }

    /** Driver allocations held. */
    public long extents() {
        return extents;
    }

    /** Driver and system calls that allocate, map, unmap or free; only in the scope of everything. */
    public long backendCalls() {
        return backendCalls;
    }

    /** The limit of exactly this scope; {@link Context#NO_LIMIT}: none. */
    public long limitBytes() {
        return limitBytes;
    }

    /** Bytes that gmm gave up in pauses and that others hold. */
    public long foreignBytes() {
        return foreignBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
