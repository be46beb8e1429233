/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How a tag stands. */
public final class PauseInfo {
    private final int tag;
    private final Contents contents;
    private final int priority;
    private final long activeBytes;
    private final long pausedBytes;
    private final long backupHostBytes;
    private final long backupFileBytes;
    private final long pauses;
    private final String name;
    private final long backupPinnedBytes;
    private final long backupZeroBytes;
    private final long retainedBytes;
    private final int flags;
    private final State state;

    PauseInfo(gmm_pause_info from) {
        this.tag = from.getTag();
        this.contents = Contents.of(from.getContents());
        this.priority = from.getPriority();
        this.activeBytes = from.getActive_bytes();
        this.pausedBytes = from.getPaused_bytes();
        this.backupHostBytes = from.getBackup_host_bytes();
        this.backupFileBytes = from.getBackup_file_bytes();
        this.pauses = from.getPauses();
        this.name = from.getName();
        this.backupPinnedBytes = from.getBackup_pinned_bytes();
        this.backupZeroBytes = from.getBackup_zero_bytes();
        this.retainedBytes = from.getRetained_bytes();
        this.flags = from.getFlags();
        this.state = State.of(from.getState());
    }

    /** The tag's number. */
    public int tag() {
        return tag;
    }

    /** What a pause does with the contents. */
    public Contents contents() {
        return contents;
    }

    /** Higher resumes first. */
    public int priority() {
        return priority;
    }

    /** VMM memory that has pages now. */
    public long activeBytes() {
        return activeBytes;
    }

    /** VMM memory whose pages are gone. */
    public long pausedBytes() {
        return pausedBytes;
    }

    /** Of it, contents kept in host memory. */
    public long backupHostBytes() {
        return backupHostBytes;
    }

    /** Of it, contents kept in a file. */
    public long backupFileBytes() {
        return backupFileBytes;
    }

    /** How often this tag was paused. */
    public long pauses() {
        return pauses;
    }

    /** Of backupHostBytes, what lies in page-locked memory. */
    public long backupPinnedBytes() {
        return backupPinnedBytes;
    }

    /** Contents that are all zero and take no room. */
    public long backupZeroBytes() {
        return backupZeroBytes;
    }

    /** Kept of active read-only memory, for the next pause. */
    public long retainedBytes() {
        return retainedBytes;
    }

    /** Whether the contents are not written after they were first paused. */
    public boolean readOnly() {
        return (flags & NativeConstants.GMM_TAG_READ_ONLY) != 0;
    }

    /** Whether what is kept is compared at the resume. */
    public boolean checksum() {
        return (flags & NativeConstants.GMM_TAG_CHECKSUM) != 0;
    }

    /** ACTIVE, PAUSED, or PARTLY_PAUSED when both kinds of memory are there. */
    public State state() {
        return state;
    }

    /** The tag's name. */
    public String name() {
        return name;
    }
}
