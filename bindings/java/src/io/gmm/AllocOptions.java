/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How to allocate. Each method changes this object and returns it. */
public final class AllocOptions {
    Kind kind = Kind.UNSPECIFIED;
    int device;
    Tag tag;
    Stream stream = Stream.DEFAULT;
    long alignment;
    int flags;
    String name;

    /** The kind of memory; DEVICE when not set. */
    public AllocOptions kind(Kind value) {
        kind = value;
        return this;
    }

    /** The device; for HOST and MANAGED memory the one that it counts for. */
    public AllocOptions device(int value) {
        device = value;
        return this;
    }

    /** The tag; null means the thread's current tag. */
    public AllocOptions tag(Tag value) {
        tag = value;
        return this;
    }

    /** The stream on which the block is used first. */
    public AllocOptions stream(Stream value) {
        stream = value;
        return this;
    }

    /** The alignment in bytes, a power of two up to 2 MiB; 0 means 256. */
    public AllocOptions alignment(long bytes) {
        Text.checkSize("the alignment", bytes);
        alignment = bytes;
        return this;
    }

    /** The block gets a driver allocation of its own. */
    public AllocOptions dedicated() {
        flags |= NativeConstants.GMM_ALLOC_DEDICATED;
        return this;
    }

    /** The block is VMM memory for network libraries, in a driver allocation of its own; the kind may be left out. */
    public AllocOptions comm() {
        flags |= NativeConstants.GMM_ALLOC_COMM;
        return this;
    }

    /** The bytes read as zero. */
    public AllocOptions zero() {
        flags |= NativeConstants.GMM_ALLOC_ZERO;
        return this;
    }

    /** The block's name of 1 to 63 bytes in UTF-8, for snapshots and the report of leaks; null means none. */
    public AllocOptions name(String value) {
        name = value;
        return this;
    }

    gmm_alloc_desc toNative(long streamAddress) {
        gmm_alloc_desc desc = new gmm_alloc_desc();
        desc.setKind(kind.value());
        desc.setDevice(device);
        desc.setTag(tag == null ? 0 : tag.number());
        desc.setStream(streamAddress);
        desc.setAlignment(alignment);
        desc.setFlags(flags);
        return desc;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
