/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What to watch: the memory of a tag or of a range, a device's budget, or both. Each method returns this object. */
public final class WatchOptions {
    private Tag tag;
    private long address;
    private long size;
    private GmmBuffer buffer;
    private long budget;
    private int device;
    private int events;
    private long timeoutMillis;
    private int order;
    private String name;

    /** VMM memory of this tag, now and later. */
    public WatchOptions tag(Tag value) {
        tag = value;
        return this;
    }

    /** A range in one VMM block. */
    public WatchOptions memory(long start, long bytes) {
        address = start;
        size = Text.checkSize("the size", bytes);
        return this;
    }

    /** A whole block of VMM memory. The watcher does not keep it. */
    public WatchOptions memory(GmmBuffer value) {
        buffer = value;
        return this;
    }

    /** Tells when the device's budget falls below so many bytes, at least 1. */
    public WatchOptions budget(int ofDevice, long bytes) {
        device = ofDevice;
        budget = Text.checkSize("the budget", bytes);
        return this;
    }

    /** Only these events. Without this method all that the options concern. */
    public WatchOptions events(WatchEvent... wanted) {
        events = 0;
        for (WatchEvent event : wanted) {
            events |= event.value();
        }
        return this;
    }

    /** Milliseconds for each answer; 0 means 10,000. */
    public WatchOptions timeoutMillis(long value) {
        timeoutMillis = Text.checkSize("the timeout", value);
        return this;
    }

    /** PREPARE and LOSING come in ascending order, RESTORED and FAILED in descending order. */
    public WatchOptions order(int value) {
        order = value;
        return this;
    }

    /** A name for messages, of 1 to 63 bytes in UTF-8; null means none. */
    public WatchOptions name(String value) {
        name = value;
        return this;
    }

    /** `user` is the WatchCall that C gets. */
    void fill(gmm_watch_desc desc, long user) {
        boolean memory = tag != null || buffer != null || address != 0;
        int all = memory ? WatchEvent.PREPARE.value() | WatchEvent.LOSING.value() | WatchEvent.RESTORED.value()
            | WatchEvent.FAILED.value() : 0;
        desc.setEvents(events != 0 ? events : all | (budget != 0 ? WatchEvent.BUDGET.value() : 0));
        desc.setTag(tag == null ? 0 : tag.number());
        desc.setDevice(device);
        desc.setAddress(buffer == null ? address : buffer.address());
        desc.setSize(buffer == null ? size : buffer.size());
        desc.setBudget_bytes(budget);
        desc.setTimeout_ms(timeoutMillis);
        desc.setOrder(order);
        desc.set_name(name);
        desc.set_callback(user);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
