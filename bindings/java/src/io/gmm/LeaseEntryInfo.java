/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A lease of the machine, and one of its devices. */
public final class LeaseEntryInfo {
    private final LeaseState state;
    private final byte[] uuid;
    private final String name;
    private final int process;
    private final int priority;
    private final long sinceMillis;
    private final long freeBytes;
    private final long heldBytes;
    private final long floorBytes;
    private final long offeredBytes;
    private final long wantedBytes;
    private final long grantedBytes;
    private final long server;
    private final int serverProcess;

    LeaseEntryInfo(gmm_lease_entry_info from) {
        this.state = LeaseState.of(from.getState());
        this.uuid = from.getUuid();
        this.name = from.getName();
        this.process = from.getProcess();
        this.priority = from.getPriority();
        this.sinceMillis = from.getSince_ms();
        this.freeBytes = from.getFree_bytes();
        this.heldBytes = from.getHeld_bytes();
        this.floorBytes = from.getFloor_bytes();
        this.offeredBytes = from.getOffered_bytes();
        this.wantedBytes = from.getWanted_bytes();
        this.grantedBytes = from.getGranted_bytes();
        this.server = from.getServer();
        this.serverProcess = from.getServer_process();
    }

    /** The state; null for one of a newer library. */
    public LeaseState state() {
        return state;
    }

    /** The UUID of the device; zero: the lease has no memory of a device yet. */
    public byte[] uuid() {
        return uuid.clone();
    }

    /** The name of the lease. */
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

    /** Milliseconds in this state. */
    public long sinceMillis() {
        return sinceMillis;
    }

    /** Free bytes of the device, as the lease's process measured. */
    public long freeBytes() {
        return freeBytes;
    }

    /** Bytes that its context holds. */
    public long heldBytes() {
        return heldBytes;
    }

    /** Bytes that are left to it. */
    public long floorBytes() {
        return floorBytes;
    }

    /** Bytes that others may have. */
    public long offeredBytes() {
        return offeredBytes;
    }

    /** Bytes that its request wants. */
    public long wantedBytes() {
        return wantedBytes;
    }

    /** Bytes that it was granted and has not allocated yet. */
    public long grantedBytes() {
        return grantedBytes;
    }

    /** The number of the server. */
    public long server() {
        return server;
    }

    /** The process of the server; 0: not known here. */
    public int serverProcess() {
        return serverProcess;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
