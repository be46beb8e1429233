/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>A page-lock of memory that the program owns.</summary>
    public sealed class GmmPin : IDisposable
    {
        private readonly GmmObjectHandle handle;
        private readonly IntPtr devicePointer;

        /// <summary>`array` is the garbage collector's pin on the memory. It ends after the native one.</summary>
        internal GmmPin(GmmContextHandle context, IntPtr memory, long size, int device, bool readOnly, GCHandle array)
        {
            bool kept = false;
            bool made = false;
            try
            {
                GmmSafeHandle.Keep(context);
                kept = true;
                Native.gmm_pin(context.DangerousGetHandle(), memory, (ulong)size,
                    new GmmPinOptions { Device = device, ReadOnly = readOnly }.Encode(), out devicePointer);
                handle = new GmmObjectHandle(memory, context, pinned =>
                {
                    try
                    {
                        Native.gmm_unpin(context.DangerousGetHandle(), pinned);
                    }
                    finally
                    {
                        if (array.IsAllocated)
                        {
                            array.Free();
                        }
                    }
                });
                made = true;
            }
            finally
            {
                if (!made)
                {
                    if (array.IsAllocated)
                    {
                        array.Free();
                    }
                    if (kept)
                    {
                        context.DangerousRelease();
                    }
                }
            }
        }

        /// <summary>The address of the pinned memory.</summary>
        public IntPtr Address
        {
            get
            {
                using (Use pin = new Use(handle))
                {
                    return pin.Address;
                }
            }
        }

        /// <summary>The address by which the device reaches the memory.</summary>
        public IntPtr DevicePointer
        {
            get
            {
                using (new Use(handle))
                {
                    return devicePointer;
                }
            }
        }

        /// <summary>Unpins the memory. No work on any stream may still use it. A second call does nothing.</summary>
        public void Dispose()
        {
            handle.CloseOrThrow();
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return Show.Or("GmmPin { closed }", () => "GmmPin { " + Show.Hex(Address) + " }");
        }
    }
}
