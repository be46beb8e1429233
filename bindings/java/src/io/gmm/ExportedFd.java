/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.util.concurrent.atomic.AtomicInteger;

/**
 * A file descriptor of a driver's allocation, for example for Vulkan. It keeps the memory alive. Close it, or call
 * {@link #detach} when another library takes it over. The garbage collector does not close it.
 */
public final class ExportedFd implements AutoCloseable {
    private final AtomicInteger fd;
    private final long offset;
    private final long size;

    ExportedFd(int fd, long offset, long size) {
        this.fd = new AtomicInteger(fd);
        this.offset = offset;
        this.size = size;
    }

    private static int open(int fd) {
        if (fd < 0) {
            throw new IllegalStateException("this descriptor is closed or detached");
        }
        return fd;
    }

    /** The descriptor. */
    public int fd() {
        return open(fd.get());
    }

    /** Bytes from the start of the allocation to the address. */
    public long offset() {
        return offset;
    }

    /** Bytes of the allocation. */
    public long size() {
        return size;
    }

    /** Returns the descriptor, which the caller closes from now on. */
    public int detach() {
        return open(fd.getAndSet(-1));
    }

    /** Closes the descriptor. Closing twice, or after detach(), does nothing. */
    @Override
    public void close() {
        int taken = fd.getAndSet(-1);
        if (taken >= 0) {
            Native.closeDescriptor(taken);
        }
    }

    @Override
    public String toString() {
        return "ExportedFd[" + fd + ", offset " + offset + ", " + Text.size(size) + "]";
    }
}
