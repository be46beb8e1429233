/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How to pause. Each method changes this object and returns it. */
public final class PauseOptions {
    private boolean force;
    private Contents contents;
    private int holdFlags;
    long holdMillis;
    Progress progress;

    /** Pauses also when importers hold the memory. They keep the old pages, and this process gets new ones. */
    public PauseOptions force() {
        force = true;
        return this;
    }

    /** What this pause does with the contents, whatever the tags say. */
    public PauseOptions contents(Contents value) {
        contents = value;
        return this;
    }

    /**
     * Of pauseAsync() alone: the pause is held when it has copied all contents, until {@link Ticket#commit()}. It is
     * undone after so many milliseconds; 0 means 60,000.
     */
    public PauseOptions hold(long millis) {
        Text.checkSize("the hold", millis);
        holdFlags |= NativeConstants.GMM_PAUSE_HOLD;
        holdMillis = millis;
        return this;
    }

    /** Promises that nothing writes the memory while it is held, so that the commit copies nothing again. */
    public PauseOptions noWrites() {
        holdFlags |= NativeConstants.GMM_PAUSE_NO_WRITES;
        return this;
    }

    /** Receives the progress of the copies. */
    public PauseOptions progress(Progress value) {
        progress = value;
        return this;
    }

    int flags() {
        int kept = contents == null ? 0
            : contents == Contents.DROP ? NativeConstants.GMM_PAUSE_DROP
            : contents == Contents.HOST ? NativeConstants.GMM_PAUSE_KEEP_HOST : NativeConstants.GMM_PAUSE_KEEP_FILE;
        return kept | holdFlags | (force ? NativeConstants.GMM_PAUSE_FORCE : 0);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
