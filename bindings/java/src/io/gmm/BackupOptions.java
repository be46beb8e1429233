/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Configures where kept contents go. Each method changes this object and returns it. Values that are not set have their
 * defaults.
 */
public final class BackupOptions {
    private boolean noArena;
    private boolean noPageable;
    private boolean namedFiles;
    private long arenaLimit;
    private long pageableLimit;
    private String directory;
    private int threads;

    /** Uses no page-locked memory beyond a small ring for copies. */
    public BackupOptions noArena() {
        noArena = true;
        return this;
    }

    /** Skips pageable memory: contents beyond the page-locked memory go to a file. */
    public BackupOptions noPageable() {
        noPageable = true;
        return this;
    }

    /**
     * Files have names in the directory: one a block, and beyond 48 files several blocks share one. They stay for later
     * pauses until {@link Context#trim} or the end of the context.
     */
    public BackupOptions namedFiles() {
        namedFiles = true;
        return this;
    }

    /** The limit of page-locked memory in bytes; 0 means GMM_BACKUP_ARENA_LIMIT, or what the host can spare. */
    public BackupOptions arenaLimit(long bytes) {
        arenaLimit = bytes;
        return this;
    }

    /** The limit of other host memory in bytes; 0 means GMM_BACKUP_PAGEABLE_LIMIT, or what the host can spare. */
    public BackupOptions pageableLimit(long bytes) {
        pageableLimit = bytes;
        return this;
    }

    /** The directory of files; null means GMM_BACKUP_DIR, or /tmp. */
    public BackupOptions directory(String path) {
        directory = path;
        return this;
    }

    /** The number of threads that copy, touch and scan host memory; 0 means one for each core, 16 at most. */
    public BackupOptions threads(int count) {
        threads = count;
        return this;
    }

    gmm_backup_desc toNative() {
        gmm_backup_desc desc = new gmm_backup_desc();
        desc.setFlags((noArena ? NativeConstants.GMM_BACKUP_NO_ARENA : 0)
            | (noPageable ? NativeConstants.GMM_BACKUP_NO_PAGEABLE : 0)
            | (namedFiles ? NativeConstants.GMM_BACKUP_NAMED_FILES : 0));
        desc.setArena_limit(arenaLimit);
        desc.setPageable_limit(pageableLimit);
        desc.setThreads(threads);
        if (directory != null) {
            desc.set_directory(directory);
        }
        return desc;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
