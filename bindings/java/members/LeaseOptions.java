/* SPDX-License-Identifier: Apache-2.0 */
    final java.util.Map<Tag, Long> offers = new java.util.LinkedHashMap<>();

    /** The settings of a lease with this name. */
    public LeaseOptions(String name) {
        name(name);
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
