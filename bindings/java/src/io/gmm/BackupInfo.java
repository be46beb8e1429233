/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The bytes of kept contents in each place. */
public final class BackupInfo {
    private final long arenaBytes;
    private final long arenaUsed;
    private final long arenaLimit;
    private final long pageableBytes;
    private final long fileBytes;
    private final long zeroBytes;
    private final long copiedBytes;
    private final long skippedBytes;

    BackupInfo(gmm_backup_info from) {
        this.arenaBytes = from.getArena_bytes();
        this.arenaUsed = from.getArena_used();
        this.arenaLimit = from.getArena_limit();
        this.pageableBytes = from.getPageable_bytes();
        this.fileBytes = from.getFile_bytes();
        this.zeroBytes = from.getZero_bytes();
        this.copiedBytes = from.getCopied_bytes();
        this.skippedBytes = from.getSkipped_bytes();
    }

    /** Page-locked bytes; {@link Context#trim} gives back what holds no contents. */
    public long arenaBytes() {
        return arenaBytes;
    }

    /** The page-locked bytes that hold contents. */
    public long arenaUsed() {
        return arenaUsed;
    }

    /** The most bytes that may be page-locked. */
    public long arenaLimit() {
        return arenaLimit;
    }

    /** Contents in other host memory. */
    public long pageableBytes() {
        return pageableBytes;
    }

    /** Contents in files. */
    public long fileBytes() {
        return fileBytes;
    }

    /** Contents that are all zero and take no room. */
    public long zeroBytes() {
        return zeroBytes;
    }

    /** Bytes copied by all pauses and resumes so far. */
    public long copiedBytes() {
        return copiedBytes;
    }

    /** Bytes not copied, since they were zero, or read-only and already kept. */
    public long skippedBytes() {
        return skippedBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
