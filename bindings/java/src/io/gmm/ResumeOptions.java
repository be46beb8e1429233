/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How to resume. Each method changes this object and returns it. */
public final class ResumeOptions {
    private boolean retain;
    Progress progress;

    /**
     * Keeps the backups in host memory of blocks over 128 KiB. {@link GmmBuffer#backup} goes on to read them, until the
     * memory is freed or a resume without this option.
     */
    public ResumeOptions retain() {
        retain = true;
        return this;
    }

    /** Receives the progress of the copies. */
    public ResumeOptions progress(Progress value) {
        progress = value;
        return this;
    }

    int flags() {
        return retain ? NativeConstants.GMM_RESUME_RETAIN : 0;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
