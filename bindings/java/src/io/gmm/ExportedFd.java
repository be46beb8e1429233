/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A file descriptor of a driver's allocation, for example for Vulkan. It keeps the memory alive. Close it, or call
 * {@link #detach} when another library takes it over. The garbage collector does not close it.
 */
public final class ExportedFd implements AutoCloseable {
    private int fd;
    private final long offset;
    private final long size;

    ExportedFd(int fd, long offset, long size) {
        this.fd = fd;
        this.offset = offset;
        this.size = size;
    }

    /** The descriptor. */
    public synchronized int fd() {
        if (fd < 0) {
            throw new IllegalStateException("this descriptor is closed or detached");
        }
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

    /** Returns the descriptor, which the caller closes from now on. */
    public synchronized int detach() {
        int taken = fd();
        fd = -1;
        return taken;
    }

    /** Closes the descriptor. Closing twice, or after detach(), does nothing. */
    @Override
    public synchronized void close() {
        if (fd >= 0) {
            int taken = fd;
            fd = -1;
            Native.closeDescriptor(taken);
        }
    }

    @Override
    public synchronized String toString() {
        return "ExportedFd[" + fd + ", offset " + offset + ", " + Text.size(size) + "]";
    }
}
