/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** Where kept contents go. Each method changes this object and returns it; what is not set is the default. */
public final class BackupOptions {
    private boolean noArena;
    private boolean noPageable;
    private long arenaLimit;
    private long pageableLimit;
    private String directory;
    private int threads;

    /** No page-locked memory beyond a small ring for copies. */
    public BackupOptions noArena() {
        noArena = true;
        return this;
    }

    /** What the page-locked memory does not hold goes to a file. */
    public BackupOptions noPageable() {
        noPageable = true;
        return this;
    }

    /** Bytes of page-locked memory; 0: GMM_BACKUP_ARENA_LIMIT, or what the host can spare. */
    public BackupOptions arenaLimit(long bytes) {
        arenaLimit = bytes;
        return this;
    }

    /** Bytes of other host memory; 0: GMM_BACKUP_PAGEABLE_LIMIT, or what the host can spare. */
    public BackupOptions pageableLimit(long bytes) {
        pageableLimit = bytes;
        return this;
    }

    /** For files; null: GMM_BACKUP_DIR, or /tmp. */
    public BackupOptions directory(String path) {
        directory = path;
        return this;
    }

    /** Threads that copy, touch and scan host memory; 0: one for each core, 16 at most. */
    public BackupOptions threads(int count) {
        threads = count;
        return this;
    }

    gmm_backup_desc toNative() {
        gmm_backup_desc desc = new gmm_backup_desc();
        desc.setFlags((noArena ? NativeConstants.GMM_BACKUP_NO_ARENA : 0) | (noPageable ? NativeConstants.GMM_BACKUP_NO_PAGEABLE : 0));
        desc.setArena_limit(arenaLimit);
        desc.setPageable_limit(pageableLimit);
        desc.setThreads(threads);
        if (directory != null) {
            desc.set_directory(directory);
        }
        return desc;
    }
}
