/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>
    /// A page-lock of memory that the program owns. No work on any stream may still use the memory at its end.
    /// </summary>
    public sealed class GmmPin : GmmObject
    {
        /// <summary>The garbage collector's pin of an array, which ends after the native one.</summary>
        private sealed class PinnedArray : IDisposable
        {
            internal GCHandle Array;
            internal IntPtr DevicePointer;

            public void Dispose()
            {
                if (Array.IsAllocated)
                {
                    Array.Free();
                }
            }
        }

        private readonly IntPtr devicePointer;

        internal GmmPin(GmmSafeHandle context, IntPtr memory, long size, int device, bool readOnly, GCHandle array)
            : this(context, memory, (ulong)size, new GmmPinOptions { Device = device, ReadOnly = readOnly },
                new PinnedArray { Array = array })
        {
        }

        private GmmPin(GmmSafeHandle context, IntPtr memory, ulong size, GmmPinOptions options, PinnedArray pinned)
            : base(GmmSafeHandle.Child(nameof(GmmPin), context, pinned, (IntPtr native, out IntPtr made) =>
            {
                Native.gmm_pin(native, memory, size, options.Encode(), out pinned.DevicePointer);
                made = memory;
            }, made => Native.gmm_unpin(context.DangerousGetHandle(), made)))
        {
            devicePointer = pinned.DevicePointer;
        }

        /// <summary>The address of the pinned memory.</summary>
        public IntPtr Address
        {
            get
            {
                using (Use self = new Use(handle))
                {
                    return self.Address;
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

        internal override string Describe() => Show.Hex(Address);
    }
}
