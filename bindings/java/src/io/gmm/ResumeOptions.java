/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How to resume. Each method changes this object and returns it. */
public final class ResumeOptions {
    private boolean retain;
    private boolean holds;
    long holdMillis;
    Progress progress;

    /**
     * Keeps the backups in host memory of blocks over 128 KiB. {@link GmmBuffer#backup} goes on to read them, until the
     * memory is freed or a resume without this option.
     */
    public ResumeOptions retain() {
        retain = true;
        return this;
    }

    /**
     * Of resumeAsync() alone: the resume is held when it has all pages, until {@link Ticket#commit()}. It is undone
     * after so many milliseconds; 0 means 60,000.
     */
    public ResumeOptions hold(long millis) {
        Text.checkSize("the hold", millis);
        holds = true;
        holdMillis = millis;
        return this;
    }

    /** Receives the progress of the copies. */
    public ResumeOptions progress(Progress value) {
        progress = value;
        return this;
    }

    int flags() {
        return (retain ? NativeConstants.GMM_RESUME_RETAIN : 0) | (holds ? NativeConstants.GMM_PAUSE_HOLD : 0);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
