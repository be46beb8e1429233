/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Where kept contents lie, in bytes. */
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

    /** Page-locked now; {@link Context#trim} gives back what is unused. */
    public long arenaBytes() {
        return arenaBytes;
    }

    /** Of them, holding contents. */
    public long arenaUsed() {
        return arenaUsed;
    }

    /** The most that may be page-locked. */
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

    /** Contents that are all zero: they take no room. */
    public long zeroBytes() {
        return zeroBytes;
    }

    /** By all pauses and resumes so far. */
    public long copiedBytes() {
        return copiedBytes;
    }

    /** Not copied as they were zero, or kept already and read-only. */
    public long skippedBytes() {
        return skippedBytes;
    }
}
