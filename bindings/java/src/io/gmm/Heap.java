/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A heap whose blocks share no extent with those of others. It is the fastest way to allocate. */
public final class Heap extends HeapCalls {
    private final Handle context;
    private final Kind kind;

    Heap(Handle context, HeapOptions options) {
        super(Handle.child("heap", context, null,
            (native_, user, out) -> Native.gmm_heap_create(native_, options.encode(), out), Native::gmm_heap_destroy));
        this.context = context;
        this.kind = options.kind == Kind.UNSPECIFIED ? Kind.DEVICE : options.kind;
    }

    /** Allocates a buffer on the default stream. */
    public GmmBuffer alloc(long size) {
        return alloc(size, Stream.DEFAULT);
    }

    /** Allocates a buffer that is used first on this stream. The buffer keeps the heap. */
    public GmmBuffer alloc(long size, Stream stream) {
        return alloc(size, stream, null);
    }

    /** Allocates a buffer with a name, as {@link AllocOptions#name}. */
    public GmmBuffer alloc(long size, Stream stream, String name) {
        return GmmBuffer.allocated(context, handle, stream, size, kind, (on, out) -> {
            Native.gmm_heap_alloc(handle.address(), size, 0, 0, on, out);
            Context.nameOrFree(context.address(), name, on, out[0]);
        });
    }

    /** Allocates memory without an object; {@link Context#free} takes its address. */
    public long allocate(long size, Stream stream) {
        Text.checkSize("the size", size);
        long[] out = new long[1];
        handle.run(address -> stream.run(on -> Native.gmm_heap_alloc(address, size, 0, 0, on, out)));
        return out[0];
    }

    /**
     * Ends the heap once its last {@link GmmBuffer} is closed. With live blocks from allocate() the result is BUSY, and
     * the heap then stays until its context ends. Inside the handler of a watcher, but for BUDGET, it is BUSY, and the
     * heap stays open. Closing twice does nothing.
     */
    @Override
    public void close() {
        Call.Watch.checkOutside("Heap.close()", true);
        super.close();
    }
}
