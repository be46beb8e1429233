/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>A heap whose blocks share no extent with those of others. It is the fastest way to allocate.</summary>
    public sealed partial class GmmHeap : GmmObject
    {
        private readonly GmmSafeHandle context;
        private readonly GmmKind kind;

        internal GmmHeap(GmmSafeHandle context, GmmHeapOptions options) : base(GmmSafeHandle.Child(
            nameof(GmmHeap), context, null,
            (IntPtr native, out IntPtr made) => Native.gmm_heap_create(native, options.Encode(), out made),
            made => Native.gmm_heap_destroy(made)))
        {
            this.context = context;
            kind = options.Kind == GmmKind.Unspecified ? GmmKind.Device : options.Kind;
        }

        /// <summary>Allocates a buffer that is used first on this stream. The buffer keeps the heap.</summary>
        /// <param name="size">Bytes.</param>
        /// <param name="stream">Null means the default stream.</param>
        /// <param name="name">As <see cref="GmmAllocOptions.Name"/>.</param>
        public GmmBuffer Alloc(long size, GmmStream stream = null, string name = null)
        {
            return GmmBuffer.Allocated(context, handle, stream, size, kind, on =>
            {
                Native.gmm_heap_alloc(handle.DangerousGetHandle(), (ulong)size, 0, 0, on, out IntPtr address);
                GmmContext.NameOrFree(context.DangerousGetHandle(), name, on, address);
                return address;
            });
        }

        /// <summary>Allocates memory without an object; <see cref="GmmContext.Free"/> takes its address.</summary>
        public IntPtr Allocate(long size, GmmStream stream)
        {
            Show.CheckSize("size", size);
            using (Use self = new Use(handle))
            using (Use on = new Use(stream))
            {
                Native.gmm_heap_alloc(self.Address, (ulong)size, 0, 0, on.Address, out IntPtr address);
                return address;
            }
        }

        /// <summary>
        /// Ends the heap once its last <see cref="GmmBuffer"/> is disposed of. With live blocks from Allocate() the
        /// result is Busy, and the heap then stays until its context ends. Inside the handler of a watcher, but for
        /// Budget, it is Busy, and the heap stays open. A second call does nothing.
        /// </summary>
        public override void Dispose()
        {
            Native.gmm_csharp_check_outside(1);
            base.Dispose();
        }
    }
}
