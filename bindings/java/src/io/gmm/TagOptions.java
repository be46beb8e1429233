/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What becomes of a tag's memory when it pauses. Each method changes this object and returns it. */
public final class TagOptions {
    private Contents contents = Contents.DROP;
    private int priority;
    private boolean readOnly;
    private boolean checksum;

    /** What a pause does with the contents; DROP when not set. */
    public TagOptions contents(Contents value) {
        contents = value;
        return this;
    }

    /** Higher resumes first. */
    public TagOptions priority(int value) {
        priority = value;
        return this;
    }

    /** The contents are not written after they were first paused: what was kept once is not copied again. */
    public TagOptions readOnly() {
        readOnly = true;
        return this;
    }

    /** What is kept is compared at the resume. */
    public TagOptions checksum() {
        checksum = true;
        return this;
    }

    gmm_tag_desc toNative() {
        gmm_tag_desc desc = new gmm_tag_desc();
        desc.setContents(contents.value());
        desc.setPriority(priority);
        desc.setFlags((readOnly ? NativeConstants.GMM_TAG_READ_ONLY : 0) | (checksum ? NativeConstants.GMM_TAG_CHECKSUM : 0));
        return desc;
    }
}
