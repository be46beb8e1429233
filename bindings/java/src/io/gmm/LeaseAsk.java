/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A lease that waits for what another one has in use. */
public final class LeaseAsk {
    private final String name;
    private final int process;
    private final int priority;
    private final long bytes;
    private final long waitingMillis;

    LeaseAsk(String name, int process, int priority, long bytes, long waitingMillis) {
        this.name = name;
        this.process = process;
        this.priority = priority;
        this.bytes = bytes;
        this.waitingMillis = waitingMillis;
    }

    /** The name of the lease that waits. */
    public String name() {
        return name;
    }

    /** Its process; 0: not known here. */
    public int process() {
        return process;
    }

    /** Its priority. */
    public int priority() {
        return priority;
    }

    /** Bytes that it wants on all devices; others may have a part of them. */
    public long bytes() {
        return bytes;
    }

    /** Milliseconds since its request. */
    public long waitingMillis() {
        return waitingMillis;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
