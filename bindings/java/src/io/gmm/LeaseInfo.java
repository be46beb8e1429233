/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How a lease stands. Sizes are bytes. */
public final class LeaseInfo {
    private final LeaseState state;
    private final long server;
    private final int serverProcess;
    private final long grants;
    private final long shorts;
    private final long asked;
    private final long evictions;
    private final long evictedBytes;
    private final long activeBytes;
    private final long pausedBytes;

    LeaseInfo(gmm_lease_info from) {
        this.state = LeaseState.of(from.getState());
        this.server = from.getServer();
        this.serverProcess = from.getServer_process();
        this.grants = from.getGrants();
        this.shorts = from.getShorts();
        this.asked = from.getAsked();
        this.evictions = from.getEvictions();
        this.evictedBytes = from.getEvicted_bytes();
        this.activeBytes = from.getActive_bytes();
        this.pausedBytes = from.getPaused_bytes();
    }

    /** The state; null for one of a newer library. */
    public LeaseState state() {
        return state;
    }

    /** The number of the server, which a later one exceeds; 0: none answers now. */
    public long server() {
        return server;
    }

    /** The process of the server; 0: none, or not known here. */
    public int serverProcess() {
        return serverProcess;
    }

    /** Requests that succeeded. */
    public long grants() {
        return grants;
    }

    /** Grants that were too small when the memory was taken. */
    public long shorts() {
        return shorts;
    }

    /** Calls of the handler. */
    public long asked() {
        return asked;
    }

    /** Pauses for others that succeeded. */
    public long evictions() {
        return evictions;
    }

    /** Bytes that these returned to the devices. */
    public long evictedBytes() {
        return evictedBytes;
    }

    /** Bytes of the offered tags that have pages, on all devices. */
    public long activeBytes() {
        return activeBytes;
    }

    /** Bytes of the offered tags that are paused, on all devices. */
    public long pausedBytes() {
        return pausedBytes;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
