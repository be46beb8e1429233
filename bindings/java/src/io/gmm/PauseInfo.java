/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The state of a tag. */
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
    private final long backupActiveBytes;
    private final int flags;
    private final State state;
    private final long foreignBytes;

    PauseInfo(gmm_tag_info from) {
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
        this.backupActiveBytes = from.getBackup_active_bytes();
        this.flags = from.getFlags();
        this.state = State.of(from.getState());
        this.foreignBytes = from.getForeign_bytes();
    }

    /** The tag's number. */
    public int tag() {
        return tag;
    }

    /** What a pause does with the contents. */
    public Contents contents() {
        return contents;
    }

    /** The priority: a higher one resumes first. */
    public int priority() {
        return priority;
    }

    /** Bytes of VMM memory that has pages now. */
    public long activeBytes() {
        return activeBytes;
    }

    /** Bytes of VMM memory without pages. */
    public long pausedBytes() {
        return pausedBytes;
    }

    /** The part of the paused bytes whose contents are in host memory. */
    public long backupHostBytes() {
        return backupHostBytes;
    }

    /** The part of the paused bytes whose contents are in a file. */
    public long backupFileBytes() {
        return backupFileBytes;
    }

    /** The number of pauses of this tag. */
    public long pauses() {
        return pauses;
    }

    /** The part of backupHostBytes in page-locked memory. */
    public long backupPinnedBytes() {
        return backupPinnedBytes;
    }

    /** Contents that are all zero and take no room. */
    public long backupZeroBytes() {
        return backupZeroBytes;
    }

    /** Contents of active read-only memory that are kept for the next pause. */
    public long backupActiveBytes() {
        return backupActiveBytes;
    }

    /** Whether nobody writes the contents after their first pause. */
    public boolean readOnly() {
        return (flags & NativeConstants.GMM_TAG_READ_ONLY) != 0;
    }

    /** Whether a resume compares the kept contents with their checksums. */
    public boolean checksum() {
        return (flags & NativeConstants.GMM_TAG_CHECKSUM) != 0;
    }

    /** Whether contents in host memory are never page-locked. */
    public boolean pageable() {
        return (flags & NativeConstants.GMM_TAG_PAGEABLE) != 0;
    }

    /** ACTIVE, PAUSED, or PARTLY_PAUSED when the tag has both kinds of memory. */
    public State state() {
        return state;
    }

    /** The tag's name. */
    public String name() {
        return name;
    }

    /** Bytes that left gmm at the last pause and did not return to the device, as others hold them. */
    public long foreignBytes() {
        return foreignBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
