/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.ByteBuffer;

/** A page-lock of memory that the program owns. */
public final class Pin implements AutoCloseable {
    private final Handle handle;
    private final long devicePointer;

    private Pin(Handle handle, long devicePointer) {
        this.handle = handle;
        this.devicePointer = devicePointer;
        handle.guard(this);
    }

    /** `owner` stays reachable until the memory is unpinned. */
    static Pin create(Handle context, long memory, long size, int device, boolean readOnly, Object owner) {
        long native_ = context.acquire();
        boolean made = false;
        try {
            PinOptions options = new PinOptions().device(device);
            long[] out = new long[1];
            Native.gmm_pin(native_, memory, size, (readOnly ? options.readOnly() : options).encode(), out);
            made = true;
            return new Pin(new Handle("pin", memory, address -> {
                try {
                    Native.gmm_unpin(native_, address);
                } finally {
                    context.release();
                    java.lang.ref.Reference.reachabilityFence(owner);
                }
            }), out[0]);
        } finally {
            if (!made) {
                context.release();
            }
        }
    }

    static long addressOf(ByteBuffer memory) {
        if (!memory.isDirect()) {
            throw new IllegalArgumentException(
                "only a direct ByteBuffer stays in its place: the garbage collector moves others");
        }
        return Native.addressOf(memory) + memory.position();
    }

    /** The address of the pinned memory. */
    public long address() {
        return handle.get(address -> address);
    }

    /** The address by which the device reaches the memory. */
    public long devicePointer() {
        return handle.get(address -> devicePointer);
    }

    /** Unpins the memory. No work on any stream may still use it. Closing twice does nothing. */
    @Override
    public void close() {
        handle.close();
    }

    @Override
    public String toString() {
        return handle.isClosed() ? "Pin[closed]" : "Pin[0x" + Long.toHexString(handle.address()) + "]";
    }
}
