/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// A point in a stream's order. An event of another process can be imported; only its maker records it. Work that
    /// waits for an event goes on waiting after its end.
    /// </summary>
    public sealed partial class GmmEvent : GmmObject
    {
        internal GmmEvent(GmmSafeHandle context, int device, bool shared)
            : this(context, (IntPtr native, out IntPtr made) => Native.gmm_event_create(
                native, new GmmEventOptions { Device = device, Shared = shared }.Encode(), out made))
        {
        }

        internal GmmEvent(GmmSafeHandle context, GmmSafeHandle.Maker maker) : base(GmmSafeHandle.Child(
            nameof(GmmEvent), context, null, maker, made => Native.gmm_event_destroy(made)))
        {
        }

        /// <summary>Records what is queued on the stream so far.</summary>
        public void Record(GmmStream stream)
        {
            using (Use self = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_event_record(self.Address, 0, on.Address);
            }
        }

        /// <summary>Blocks until the event has passed. An event that was never recorded has passed.</summary>
        public void Synchronize()
        {
            using (Use self = new Use(handle))
            {
                Native.gmm_event_synchronize(self.Address, 0, ulong.MaxValue);
            }
        }

        /// <summary>Whether the event has passed.</summary>
        public bool Query()
        {
            using (Use self = new Use(handle))
            {
                Native.gmm_event_query(self.Address, out ulong passed);
                return passed != 0;
            }
        }

        internal override string Describe() => "open";
    }
}
