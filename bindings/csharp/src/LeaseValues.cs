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

    /// <summary>What a lease is, and what it offers.</summary>
    public sealed class GmmLeaseOptions
    {
        /// <summary>
        /// For messages and `gmm serve --status`: 1 to 63 letters, digits, '.', '-' and '_', no '.' first.
        /// </summary>
        public string Name { get; set; }
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

}
