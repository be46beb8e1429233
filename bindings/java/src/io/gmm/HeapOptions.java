/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a heap is for. Each method changes this object and returns it. */
public final class HeapOptions {
    Kind kind = Kind.UNSPECIFIED;
    int device;
    Tag tag;
    long minimumExtent;
    long limit;
    long peerDevices;
    boolean exportable;

    /** The kind of memory; DEVICE when not set. */
    public HeapOptions kind(Kind value) {
        kind = value;
        return this;
    }

    /** The device. */
    public HeapOptions device(int value) {
        device = value;
        return this;
    }

    /** The tag; null means the thread's current tag at creation. */
    public HeapOptions tag(Tag value) {
        tag = value;
        return this;
    }

    /** The fewest bytes to request from the driver at once; with 0 they grow with the heap. */
    public HeapOptions minimumExtent(long bytes) {
        Text.checkSize("the extent", bytes);
        minimumExtent = bytes;
        return this;
    }

    /** The most bytes that the heap may hold from the driver; 0 means no limit. */
    public HeapOptions limit(long bytes) {
        Text.checkSize("the limit", bytes);
        limit = bytes;
        return this;
    }

    /** VMM: bit d lets device d use the memory too. */
    public HeapOptions peerDevices(long mask) {
        peerDevices = mask;
        return this;
    }

    /** Each block lies in one driver allocation and has a file descriptor. */
    public HeapOptions exportable() {
        exportable = true;
        return this;
    }

    gmm_heap_desc toNative() {
        gmm_heap_desc desc = new gmm_heap_desc();
        desc.setKind(kind.value());
        desc.setDevice(device);
        desc.setTag(tag == null ? 0 : tag.number());
        desc.setMinimum_extent(minimumExtent);
        desc.setLimit(limit);
        desc.setPeer_devices(peerDevices);
        desc.setFlags(exportable ? NativeConstants.GMM_HEAP_EXPORTABLE : 0);
        return desc;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
