/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// A point in a stream's order. An event of another process can be imported; only its maker records it.
    /// </summary>
    public sealed class GmmEvent : IDisposable
    {
        /// <summary>A call that makes an event.</summary>
        internal delegate void Maker(IntPtr context, out IntPtr address);

        internal GmmEvent(GmmContextHandle context, int device, bool shared)
            : this(context, (IntPtr native, out IntPtr address) => Native.gmm_event_create(
                native, new GmmEventOptions { Device = device, Shared = shared }.Encode(), out address))
        {
        }

        internal GmmEvent(GmmContextHandle context, Maker maker)
        {
            Handle = GmmSafeHandle.Child(context, null, native =>
            {
                IntPtr address;
                maker(native, out address);
                return new GmmObjectHandle(address, context, made => Native.gmm_event_destroy(made));
            });
        }

        internal GmmObjectHandle Handle { get; }

        /// <summary>Records what is queued on the stream so far.</summary>
        public void Record(GmmStream stream)
        {
            using (Use point = new Use(Handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_event_record(point.Address, 0, on.Address);
            }
        }

        /// <summary>Blocks until the event has passed. An event that was never recorded has passed.</summary>
        public void Synchronize()
        {
            using (Use point = new Use(Handle))
            {
                Native.gmm_event_synchronize(point.Address, 0, ulong.MaxValue);
            }
        }

        /// <summary>Whether the event has passed.</summary>
        public bool Query()
        {
            using (Use point = new Use(Handle))
            {
                ulong passed;
                Native.gmm_event_query(point.Address, out passed);
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
                Native.gmm_event_export(point.Address, result);
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

        /// <inheritdoc/>
        public override string ToString()
        {
            return Handle.IsDisposed ? "GmmEvent { closed }" : "GmmEvent { open }";
        }
    }
}
