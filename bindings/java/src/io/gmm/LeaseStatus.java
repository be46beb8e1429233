/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What an arbiter knows: its members, what they hold and offer, and who waits. Sizes are bytes. */
public final class LeaseStatus {
    private final long arbiter;
    private final int process;
    private final List<Member> members;

    /** Asks an arbiter. */
    static LeaseStatus read(long context, String arbiter, long timeoutMillis) {
        try (gmm_lease_status status = new gmm_lease_status(); gmm_lease_member member = new gmm_lease_member()) {
            Native.gmm_lease_status_read(context, arbiter, timeoutMillis, status);
            List<Member> members = new ArrayList<>();
            for (int i = 0; i < status.getMember_count(); i++) {
                status.member(i, member);
                members.add(new Member(member, devices(status, i, member.getDevice_count())));
            }
            return new LeaseStatus(status, members);
        }
    }

    private static List<Device> devices(gmm_lease_status status, int member, int count) {
        try (gmm_lease_device device = new gmm_lease_device()) {
            List<Device> devices = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                status.device(i, member, device);
                devices.add(new Device(device));
            }
            return Collections.unmodifiableList(devices);
        }
    }

    private LeaseStatus(gmm_lease_status from, List<Member> members) {
        this.arbiter = from.getArbiter();
        this.process = from.getProcess();
        this.members = Collections.unmodifiableList(members);
    }

    /** The number of the arbiter, a new one after each election. */
    public long arbiter() {
        return arbiter;
    }

    /** Its process. */
    public int process() {
        return process;
    }

    /** The leases. */
    public List<Member> members() {
        return members;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }

    /** A lease, as the arbiter last heard of it. */
    public static final class Member {
        private final String name;
        private final int process;
        private final int priority;
        private final LeaseState state;
        private final long sinceMillis;
        private final List<Device> devices;

        private Member(gmm_lease_member from, List<Device> devices) {
            this.name = from.getName();
            this.process = from.getProcess();
            this.priority = from.getPriority();
            this.state = LeaseState.of(from.getState());
            this.sinceMillis = from.getSince_ms();
            this.devices = devices;
        }

        /** Its name. */
        public String name() {
            return name;
        }

        /** Its process; 0: not known there. */
        public int process() {
            return process;
        }

        /** Its priority. */
        public int priority() {
            return priority;
        }

        /** Its state. Who takes what was granted still waits. */
        public LeaseState state() {
            return state;
        }

        /** Milliseconds since it has this state. */
        public long sinceMillis() {
            return sinceMillis;
        }

        /** Its devices. */
        public List<Device> devices() {
            return devices;
        }

        @Override
        public String toString() {
            return Text.describe(this);
        }
    }

    /** What a lease has of a device, and wants of it. */
    public static final class Device {
        private final String uuid;
        private final long freeBytes;
        private final long heldBytes;
        private final long floorBytes;
        private final long offeredBytes;
        private final long wantedBytes;
        private final long grantedBytes;

        private Device(gmm_lease_device from) {
            this.uuid = from.getUuid();
            this.freeBytes = from.getFree_bytes();
            this.heldBytes = from.getHeld_bytes();
            this.floorBytes = from.getFloor_bytes();
            this.offeredBytes = from.getOffered_bytes();
            this.wantedBytes = from.getWanted_bytes();
            this.grantedBytes = from.getGranted_bytes();
        }

        /** The device, for all processes. */
        public String uuid() {
            return uuid;
        }

        /** Free bytes of the device, as the lease's process measures it. */
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

        /** Bytes of its offered tags that others can have. */
        public long offeredBytes() {
            return offeredBytes;
        }

        /** Bytes that its request wants. */
        public long wantedBytes() {
            return wantedBytes;
        }

        /** Bytes that were granted and not taken yet. */
        public long grantedBytes() {
            return grantedBytes;
        }

        @Override
        public String toString() {
            return Text.describe(this);
        }
    }
}
