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
        private readonly IntPtr devicePointer;

        private GmmPin(GmmSafeHandle handle, IntPtr devicePointer) : base(handle) => this.devicePointer = devicePointer;

        /// <summary>`array` is the garbage collector's pin of the memory, which ends after the native one.</summary>
        internal static GmmPin Make(GmmSafeHandle context, IntPtr memory, long size, GmmPinOptions options,
            GCHandle array)
        {
            IntPtr pointer = IntPtr.Zero;
            Once end = new Once(() =>
            {
                if (array.IsAllocated)
                {
                    array.Free();
                }
            });
            return new GmmPin(GmmSafeHandle.Child(nameof(GmmPin), context, end, (IntPtr native, out IntPtr made) =>
            {
                Native.gmm_pin(native, memory, (ulong)size, options.Encode(), out pointer);
                made = memory;
            }, made => Native.gmm_unpin(context.DangerousGetHandle(), made)), pointer);
        }

        /// <summary>The address of the pinned memory.</summary>
        public IntPtr Address => Get(self => self);

        /// <summary>The address by which the device reaches the memory.</summary>
        public IntPtr DevicePointer => Get(self => devicePointer);
    }
}
