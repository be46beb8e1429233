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

        /// <summary>Records the work that is queued on the stream so far.</summary>
        public void Record(GmmStream stream) => Run(self => stream.RunOn(on => Native.gmm_event_record(self, 0, on)));

        /// <summary>Blocks until the event has passed. An event that was never recorded has passed.</summary>
        public void Synchronize() => Run(self => Native.gmm_event_synchronize(self, 0, ulong.MaxValue));

        /// <summary>Whether the event has passed.</summary>
        public bool Query() => Get(self =>
        {
            Native.gmm_event_query(self, out ulong passed);
            return passed != 0;
        });
    }
}
