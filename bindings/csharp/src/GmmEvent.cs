/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// A point in a stream's order. An event of another process can be imported; only its maker records it.
    /// </summary>
    public sealed class GmmEvent : IDisposable
    {
        private readonly GmmContextHandle context;

        /// <summary>A call that makes an event.</summary>
        internal delegate void Maker(IntPtr context, out IntPtr address);

        internal GmmEvent(GmmContextHandle context, int device)
            : this(context, (IntPtr native, out IntPtr address) => Native.gmm_event_create(native, device, out address))
        {
        }

        internal GmmEvent(GmmContextHandle context, Maker maker)
        {
            GmmSafeHandle.Keep(context);
            bool made = false;
            try
            {
                IntPtr address;
                maker(context.DangerousGetHandle(), out address);
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

        /// <summary>Records what is queued on the stream so far.</summary>
        public void Record(GmmStream stream)
        {
            using (Use point = new Use(Handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_event_record(context.DangerousGetHandle(), point.Address, on.Address);
            }
        }

        /// <summary>Blocks until the event has passed. An event that was never recorded has passed.</summary>
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

        /// <summary>
        /// A handle of an event of <see cref="GmmContext.IpcEvent"/>: bytes to send to another process of the same
        /// user, for <see cref="GmmContext.ImportEvent(byte[])"/>. The event must stay until it is imported.
        /// </summary>
        public byte[] Export()
        {
            byte[] result = new byte[GmmContext.IpcHandleSize];
            using (Use point = new Use(Handle))
            {
                Native.gmm_event_export(context.DangerousGetHandle(), point.Address, result);
            }
            return result;
        }

        /// <summary>
        /// Ends the event. Work that waits for it already goes on waiting. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            Handle.CloseOrThrow();
        }
    }
}
