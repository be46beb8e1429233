/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a pause does with a tag's memory. Each method changes this object and returns it. */
public final class TagOptions {
    private Contents contents = Contents.DROP;
    private int priority;
    private boolean readOnly;
    private boolean checksum;
    private boolean pageable;

    /** What a pause does with the contents; DROP when not set. */
    public TagOptions contents(Contents value) {
        contents = value;
        return this;
    }

    /** The priority: a higher one resumes first. */
    public TagOptions priority(int value) {
        priority = value;
        return this;
    }

    /** Promises that nobody writes the contents after their first pause. What was kept once is not copied again. */
    public TagOptions readOnly() {
        readOnly = true;
        return this;
    }

    /** A resume compares the kept contents with their checksums. */
    public TagOptions checksum() {
        checksum = true;
        return this;
    }

    /** Contents in host memory are never page-locked, so a resume returns their memory to the system. */
    public TagOptions pageable() {
        pageable = true;
        return this;
    }

    gmm_tag_desc toNative() {
        gmm_tag_desc desc = new gmm_tag_desc();
        desc.setContents(contents.value());
        desc.setPriority(priority);
        desc.setFlags((readOnly ? NativeConstants.GMM_TAG_READ_ONLY : 0)
            | (checksum ? NativeConstants.GMM_TAG_CHECKSUM : 0)
            | (pageable ? NativeConstants.GMM_TAG_PAGEABLE : 0));
        return desc;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
