/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>A point in a stream's order.</summary>
    public sealed class GmmEvent : IDisposable
    {
        private readonly GmmContextHandle context;

        internal GmmEvent(GmmContextHandle context, int device)
        {
            GmmSafeHandle.Keep(context);
            bool made = false;
            try
            {
                IntPtr address;
                Native.gmm_event_create(context.DangerousGetHandle(), device, out address);
                Handle = new GmmEventHandle(address, context);
                this.context = context;
                made = true;
            }
            finally
            {
                if (!made)
                {
                    context.DangerousRelease();
                }
            }
        }

        internal GmmEventHandle Handle { get; }

        /// <summary>Sets the event to what is queued on the stream so far.</summary>
        public void Record(GmmStream stream)
        {
            using (Use point = new Use(Handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_event_record(context.DangerousGetHandle(), point.Address, on.Address);
            }
        }

        /// <summary>Blocks until the event has passed. An event never recorded has passed.</summary>
        public void Synchronize()
        {
            using (Use point = new Use(Handle))
            {
                Native.gmm_event_synchronize(context.DangerousGetHandle(), point.Address);
            }
        }

        /// <summary>Whether the event has passed.</summary>
        public bool Query()
        {
            using (Use point = new Use(Handle))
            {
                uint passed;
                Native.gmm_event_query(context.DangerousGetHandle(), point.Address, out passed);
                return passed != 0;
            }
        }

        /// <summary>Ends the event; work that waits for it still may. A second call does nothing.</summary>
        public void Dispose()
        {
            Handle.CloseOrThrow();
        }
    }
}
