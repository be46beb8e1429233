/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.LinkedHashMap;
import java.util.Map;

/** What a lease is, and what it offers. Each method changes this object and returns it. */
public final class LeaseOptions {
    final String name;
    private int priority;
    private long floor;
    private long residencyMillis;
    final Map<Tag, Long> offers = new LinkedHashMap<>();
    LeaseHandler handler;

    /** A name for messages and {@code gmm serve --status}: 1 to 63 letters, digits, '.', '-' and '_', no '.' first. */
    public LeaseOptions(String name) {
        this.name = name;
    }

    /** The highest is served first; the lowest gives up memory first. */
    public LeaseOptions priority(int value) {
        priority = value;
        return this;
    }

    /**
     * Bytes of each device that are left to this process. What it holds counts, and more than a device has means all of
     * it.
     */
    public LeaseOptions floor(long bytes) {
        floor = Text.checkSize("the floor", bytes);
        return this;
    }

    /**
     * Milliseconds after a grant in which the offered tags stay, so that processes do not only copy; 0 means as long as
     * the last resume took, at least 100.
     */
    public LeaseOptions residencyMillis(long value) {
        residencyMillis = Text.checkSize("the residency", value);
        return this;
    }

    /** Offers tags: between two turns the program does not use their memory, and gmm pauses it for others. */
    public LeaseOptions offer(Tag... tags) {
        for (Tag tag : tags) {
            offer(tag, Lease.DEFAULT_COST);
        }
        return this;
    }

    /** Offers a tag. The cost is that of bringing a byte of it back, beside other tags; the lowest goes first. */
    public LeaseOptions offer(Tag tag, long cost) {
        offers.put(tag, Lease.checkCost(cost));
        return this;
    }

    /** Hears that others want what is in use. */
    public LeaseOptions asked(LeaseHandler value) {
        handler = value;
        return this;
    }

    /** `user` is the LeaseCall that C gets, or 0. */
    void fill(gmm_lease_desc desc, long user) {
        desc.set_name(name);
        desc.setPriority(priority);
        desc.setFloor_bytes(floor);
        desc.setResidency_ms(residencyMillis);
        desc.set_asked(user);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
