/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;

/** A page-lock of memory that the program owns. No work on any stream may still use the memory at its close. */
public final class Pin extends NativeObject {
    private final long devicePointer;

    private Pin(Handle handle, long devicePointer) {
        super(handle);
        this.devicePointer = devicePointer;
    }

    /** `owner` stays reachable until the memory is unpinned. */
    static Pin create(Handle context, long memory, long size, int device, boolean readOnly, Object owner) {
        PinOptions options = new PinOptions().device(device);
        byte[] desc = (readOnly ? options.readOnly() : options).encode();
        long[] pointer = new long[1];
        return new Pin(Handle.child("pin", context, null, (native_, user, out) -> {
            Native.gmm_pin(native_, memory, size, desc, pointer);
            out[0] = memory;
        }, address -> {
            try {
                Native.gmm_unpin(context.address(), address);
            } finally {
                Reference.reachabilityFence(owner);
            }
        }), pointer[0]);
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
}
