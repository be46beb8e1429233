/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * The driver's own handle of memory (cudaIpcMemHandle_t), for libraries that take no other. gmm does not see who opens
 * it.
 */
public final class LegacyHandle {
    /** Bytes of the driver's handle. */
    public static final int SIZE = 64;

    private final byte[] bytes;
    private final long offset;
    private final long size;

    LegacyHandle(byte[] bytes, long offset, long size) {
        this.bytes = bytes;
        this.offset = offset;
        this.size = size;
    }

    /** The handle. */
    public byte[] bytes() {
        return bytes.clone();
    }

    /** Bytes from the start of the driver's allocation, which the other side opens, to the memory. */
    public long offset() {
        return offset;
    }

    /** Bytes of the driver's allocation. */
    public long size() {
        return size;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
