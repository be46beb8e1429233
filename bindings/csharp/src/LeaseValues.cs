/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;

namespace Gmm
{
    /// <summary>A lease that waits for what another one has in use.</summary>
    public sealed class GmmLeaseAsk
    {
        internal GmmLeaseAsk(LeaseCall.Fields from)
        {
            Name = from.Text;
            Process = from.Process;
            Priority = from.Priority;
            Bytes = (long)from.Bytes;
            WaitingMilliseconds = (long)from.WaitingMilliseconds;
        }

        /// <summary>The name of the lease that waits.</summary>
        public string Name { get; }

        /// <summary>Its process; 0: not known here.</summary>
        public int Process { get; }

        /// <summary>Its priority.</summary>
        public int Priority { get; }

        /// <summary>Bytes that it wants on all devices; others may have a part of them.</summary>
        public long Bytes { get; }

        /// <summary>Milliseconds since its request.</summary>
        public long WaitingMilliseconds { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>How a lease stands. Sizes are bytes.</summary>
    public sealed class GmmLeaseInfo
    {
        internal GmmLeaseInfo(gmm_lease_info from)
        {
            State = (GmmLeaseState)from.state;
            Arbiter = (long)from.arbiter;
            ArbiterProcess = from.arbiter_process;
            IsArbiter = from.is_arbiter != 0;
            Grants = (long)from.grants;
            Shorts = (long)from.shorts;
            Asked = (long)from.asked;
            Evictions = (long)from.evictions;
            EvictedBytes = (long)from.evicted_bytes;
            ActiveBytes = (long)from.active_bytes;
            PausedBytes = (long)from.paused_bytes;
        }

        /// <summary>The state.</summary>
        public GmmLeaseState State { get; }

        /// <summary>The number of the arbiter, a new one after each election; 0: none answers now.</summary>
        public long Arbiter { get; }

        /// <summary>The process of the arbiter; 0: none, or not known here.</summary>
        public int ArbiterProcess { get; }

        /// <summary>Whether a thread of this lease is the arbiter.</summary>
        public bool IsArbiter { get; }

        /// <summary>Requests that succeeded.</summary>
        public long Grants { get; }

        /// <summary>Grants that were too small when the memory was taken.</summary>
        public long Shorts { get; }

        /// <summary>Calls of the handler.</summary>
        public long Asked { get; }

        /// <summary>Pauses for others that succeeded.</summary>
        public long Evictions { get; }

        /// <summary>Bytes that these returned to the devices.</summary>
        public long EvictedBytes { get; }

        /// <summary>Bytes of the offered tags that have pages, on all devices.</summary>
        public long ActiveBytes { get; }

        /// <summary>Bytes of the offered tags that are paused, on all devices.</summary>
        public long PausedBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What an arbiter knows: its members, what they hold and offer, and who waits.</summary>
    public sealed class GmmLeaseStatus
    {
        internal GmmLeaseStatus(gmm_lease_status from, IReadOnlyList<GmmLeaseMember> members)
        {
            Arbiter = (long)from.arbiter;
            Process = from.process;
            Members = members;
        }

        /// <summary>The number of the arbiter, a new one after each election.</summary>
        public long Arbiter { get; }

        /// <summary>Its process.</summary>
        public int Process { get; }

        /// <summary>The leases.</summary>
        public IReadOnlyList<GmmLeaseMember> Members { get; }

        /// <summary>Asks an arbiter.</summary>
        internal static GmmLeaseStatus Read(IntPtr context, string arbiter, ulong timeout)
        {
            using (gmm_lease_status status = new gmm_lease_status())
            using (gmm_lease_member member = new gmm_lease_member())
            using (gmm_lease_device device = new gmm_lease_device())
            {
                Native.gmm_lease_status_read(context, arbiter, timeout, status);
                List<GmmLeaseMember> members = new List<GmmLeaseMember>();
                for (uint i = 0; i < status.member_count; i++)
                {
                    status.member(i, member);
                    List<GmmLeaseDevice> devices = new List<GmmLeaseDevice>();
                    for (uint k = 0; k < member.device_count; k++)
                    {
                        status.device(k, i, device);
                        devices.Add(new GmmLeaseDevice(device));
                    }
                    members.Add(new GmmLeaseMember(member, devices));
                }
                return new GmmLeaseStatus(status, members);
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>A lease, as the arbiter last heard of it.</summary>
    public sealed class GmmLeaseMember
    {
        internal GmmLeaseMember(gmm_lease_member from, IReadOnlyList<GmmLeaseDevice> devices)
        {
            Name = from.name;
            Process = from.process;
            Priority = from.priority;
            State = (GmmLeaseState)from.state;
            SinceMilliseconds = (long)from.since_ms;
            Devices = devices;
        }

        /// <summary>Its name.</summary>
        public string Name { get; }

        /// <summary>Its process; 0: not known there.</summary>
        public int Process { get; }

        /// <summary>Its priority.</summary>
        public int Priority { get; }

        /// <summary>Its state. Who takes what was granted still waits.</summary>
        public GmmLeaseState State { get; }

        /// <summary>Milliseconds since it has this state.</summary>
        public long SinceMilliseconds { get; }

        /// <summary>Its devices.</summary>
        public IReadOnlyList<GmmLeaseDevice> Devices { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a lease has of a device, and wants of it. Sizes are bytes.</summary>
    public sealed class GmmLeaseDevice
    {
        internal GmmLeaseDevice(gmm_lease_device from)
        {
            Uuid = from.uuid;
            FreeBytes = (long)from.free_bytes;
            HeldBytes = (long)from.held_bytes;
            FloorBytes = (long)from.floor_bytes;
            OfferedBytes = (long)from.offered_bytes;
            WantedBytes = (long)from.wanted_bytes;
            GrantedBytes = (long)from.granted_bytes;
        }

        /// <summary>The device, for all processes.</summary>
        public string Uuid { get; }

        /// <summary>Free bytes of the device, as the lease's process measures it.</summary>
        public long FreeBytes { get; }

        /// <summary>Bytes that its context holds.</summary>
        public long HeldBytes { get; }

        /// <summary>Bytes that are left to it.</summary>
        public long FloorBytes { get; }

        /// <summary>Bytes of its offered tags that others can have.</summary>
        public long OfferedBytes { get; }

        /// <summary>Bytes that its request wants.</summary>
        public long WantedBytes { get; }

        /// <summary>Bytes that were granted and not taken yet.</summary>
        public long GrantedBytes { get; }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a lease is, and what it offers.</summary>
    public sealed class GmmLeaseOptions
    {
        /// <summary>
        /// For messages and `gmm lease --status`: 1 to 63 letters, digits, '.', '-' and '_', no '.' first.
        /// </summary>
        public string Name { get; set; }
        /// <summary>Whose turns: all processes of one device name the same arbiter. Null: "default".</summary>
        public string Arbiter { get; set; }
        /// <summary>
        /// The offered tags with what it costs to bring a byte of each back; the lowest goes first. Between two turns
        /// the program does not use their memory, and gmm pauses it for others.
        /// </summary>
        public IDictionary<GmmTag, long> Offer { get; } = new Dictionary<GmmTag, long>();
        /// <summary>The highest is served first; the lowest gives up memory first.</summary>
        public int Priority { get; set; }
        /// <summary>
        /// Bytes of each device that are left to this process. What it holds counts, and more than a device has means
        /// all of it.
        /// </summary>
        public long Floor { get; set; }
        /// <summary>
        /// Milliseconds after a grant in which the offered tags stay, so that processes do not only copy; 0 means as
        /// long as the last resume took, at least 100.
        /// </summary>
        public long ResidencyMilliseconds { get; set; }
        /// <summary>Hears that others want what is in use; null: nobody does.</summary>
        public GmmLeaseHandler Asked { get; set; }

        internal void Fill(gmm_lease_desc desc, IntPtr user)
        {
            Show.CheckSize("Floor", Floor);
            Show.CheckSize("ResidencyMilliseconds", ResidencyMilliseconds);
            desc.set_name(Name);
            desc.set_arbiter(Arbiter);
            desc.priority = Priority;
            desc.floor_bytes = (ulong)Floor;
            desc.residency_ms = (ulong)ResidencyMilliseconds;
            desc.set_asked(user);
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>What a turn of a lease needs beyond the paused memory of the offered tags.</summary>
    public sealed class GmmLeaseRequest
    {
        /// <summary>
        /// Bytes that the program will allocate, by device. They are kept free for the lease until the program
        /// allocates them or releases.
        /// </summary>
        public IDictionary<int, long> Amounts { get; } = new Dictionary<int, long>();
        /// <summary>Milliseconds to wait for the turn, at most a day; 0 means 60,000.</summary>
        public long TimeoutMilliseconds { get; set; }

        internal void Fill(gmm_lease_request_desc desc)
        {
            Show.CheckSize("TimeoutMilliseconds", TimeoutMilliseconds);
            desc.timeout_ms = (ulong)TimeoutMilliseconds;
            foreach (KeyValuePair<int, long> amount in Amounts)
            {
                Show.CheckSize("Amounts", amount.Value);
                desc.add_amount(amount.Key, (ulong)amount.Value);
            }
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Properties(this);
        }
    }

    /// <summary>Who may have the memory of the offered tags: InUse, the program alone; else others, too.</summary>
    public enum GmmLeaseState
    {
        /// <summary>It has asked for nothing, or has released.</summary>
        Idle = 0,
        /// <summary>A request waits for the turn.</summary>
        Waiting = 1,
        /// <summary>The program has its memory until <see cref="GmmLease.Release"/>.</summary>
        InUse = 2
    }
}
