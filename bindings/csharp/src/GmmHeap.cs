/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>A heap whose blocks share no extent with those of others. It is the fastest way to allocate.</summary>
    public sealed class GmmHeap : IDisposable
    {
        private readonly GmmContextHandle context;
        private readonly GmmObjectHandle handle;
        private readonly GmmKind kind;

        internal GmmHeap(GmmContextHandle context, GmmHeapOptions options)
        {
            handle = GmmSafeHandle.Child(context, null, native =>
            {
                IntPtr address;
                Native.gmm_heap_create(native, options.Encode(), out address);
                return new GmmObjectHandle(address, context, made => Native.gmm_heap_destroy(made));
            });
            this.context = context;
            kind = options.Kind == GmmKind.Unspecified ? GmmKind.Device : options.Kind;
        }

        /// <summary>Allocates a buffer on the default stream.</summary>
        public GmmBuffer Alloc(long size)
        {
            return Alloc(size, GmmStream.Default);
        }

        /// <summary>Allocates a buffer that is used first on this stream. The buffer keeps the heap.</summary>
        public GmmBuffer Alloc(long size, GmmStream stream)
        {
            return Alloc(size, stream, null);
        }

        /// <summary>The same with a name, as <see cref="GmmAllocOptions.Name"/>.</summary>
        public GmmBuffer Alloc(long size, GmmStream stream, string name)
        {
            return GmmBuffer.Allocated(context, handle, stream, size, kind, on =>
            {
                IntPtr address;
                Native.gmm_heap_alloc(handle.DangerousGetHandle(), (ulong)size, 0, 0, on, out address);
                GmmContext.NameOrFree(context.DangerousGetHandle(), name, on, address);
                return address;
            });
        }

        /// <summary>Allocates memory without an object; <see cref="GmmContext.Free"/> takes its address.</summary>
        public IntPtr Allocate(long size, GmmStream stream)
        {
            Show.CheckSize("size", size);
            using (Use heap = new Use(handle))
            using (Use on = new Use(stream))
            {
                IntPtr address;
                Native.gmm_heap_alloc(heap.Address, (ulong)size, 0, 0, on.Address, out address);
                return address;
            }
        }

        /// <summary>
        /// Makes the heap hold at least so many bytes from now on, all of them touched, so that blocks that fit into
        /// them need no call of the driver. A later call replaces the number; 0 ends it.
        /// </summary>
        public void Reserve(long bytes)
        {
            Show.CheckSize("bytes", bytes);
            using (Use heap = new Use(handle))
            {
                Native.gmm_heap_reserve(heap.Address, (ulong)bytes);
            }
        }

        /// <summary>
        /// Ends the heap once its last <see cref="GmmBuffer"/> is disposed of. With live blocks from Allocate() the
        /// result is Busy, and the heap then stays until its context ends. Inside the handler of a watcher, but for
        /// Budget, it is Busy, and the heap stays open. A second call does nothing.
        /// </summary>
        public void Dispose()
        {
            WatchCall.CheckOutside("GmmHeap.Dispose()", true);
            handle.CloseOrThrow();
        }

        /// <inheritdoc/>
        public override string ToString()
        {
            return "GmmHeap { " + kind + (handle.IsDisposed ? ", closed }" : " }");
        }
    }
}
