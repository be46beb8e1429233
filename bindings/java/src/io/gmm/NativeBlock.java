/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The memory of a buffer. A reset of the context takes what was allocated, and leaves imports. */
abstract class NativeBlock extends NativeObject {
    interface Call {
        void run(long context, long self);
    }

    final Handle context;
    final long size;
    private final int generation;
    private final boolean isImported;

    NativeBlock(Handle handle, Handle context, long size, boolean isImported) {
        super(handle);
        this.context = context;
        this.size = size;
        this.isImported = isImported;
        this.generation = context.generation();
    }

    /** The address, which is good until handle.release(). */
    long acquire() {
        long address = handle.acquire();
        if (!isImported && generation != context.generation()) {
            handle.release();
            throw new IllegalStateException("this buffer's memory went with a reset of its context");
        }
        return address;
    }

    void run(Call call) {
        long address = acquire();
        try {
            call.run(context.address(), address);
        } finally {
            handle.release();
        }
    }

    void check(long offset, long length) {
        if (offset < 0 || length < 0 || offset > size - length) {
            throw new IndexOutOfBoundsException("bytes " + offset + " to " + (offset + length) + " of a buffer of "
                + size + " bytes");
        }
    }
}
