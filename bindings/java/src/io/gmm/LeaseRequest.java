/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.Map;
import java.util.TreeMap;

/** What a turn needs beyond the paused memory of the offered tags. Each method changes this object and returns it. */
public final class LeaseRequest {
    private final Map<Integer, Long> amounts = new TreeMap<>();
    private long timeoutMillis;

    /**
     * Bytes that the program will allocate on a device. They are kept free for the lease until the program allocates
     * them or releases.
     */
    public LeaseRequest amount(int device, long bytes) {
        amounts.put(device, Text.checkSize("the amount", bytes));
        return this;
    }

    /** Milliseconds to wait for the turn, at most a day; 0 means 60,000. */
    public LeaseRequest timeoutMillis(long value) {
        timeoutMillis = Text.checkSize("the timeout", value);
        return this;
    }

    void fill(gmm_lease_request_desc desc) {
        desc.setTimeout_ms(timeoutMillis);
        amounts.forEach(desc::add_amount);
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
