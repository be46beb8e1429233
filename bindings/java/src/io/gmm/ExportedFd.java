/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A file descriptor of a driver's allocation. The caller owns the descriptor and closes it. */
public final class ExportedFd {
    private final int fd;
    private final long offset;
    private final long size;

    ExportedFd(int fd, long offset, long size) {
        this.fd = fd;
        this.offset = offset;
        this.size = size;
    }

    /** The descriptor. */
    public int fd() {
        return fd;
    }

    /** Bytes from the start of the allocation to the address. */
    public long offset() {
        return offset;
    }

    /** Bytes of the allocation. */
    public long size() {
        return size;
    }
}
