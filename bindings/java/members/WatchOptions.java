/* SPDX-License-Identifier: Apache-2.0 */
    /** A range in one VMM block. */
    public WatchOptions memory(long start, long bytes) {
        return address(start).size(bytes);
    }

    /** A whole block of VMM memory. The watcher does not keep it. */
    public WatchOptions memory(GmmBuffer value) {
        return memory(value.address(), value.size());
    }

    /** Tells when the device's budget falls below so many bytes, at least 1. */
    public WatchOptions budget(int ofDevice, long bytes) {
        return device(ofDevice).budgetBytes(bytes);
    }

    /** All events that the options concern. */
    private int defaultEvents() {
        int memory = WatchEvent.PREPARE.value() | WatchEvent.LOSING.value() | WatchEvent.RESTORED.value()
            | WatchEvent.FAILED.value();
        return (tag != null || address != 0 ? memory : 0) | (budgetBytes != 0 ? WatchEvent.BUDGET.value() : 0);
    }
