/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A turn of a lease, until close(). */
public final class LeaseTurn implements AutoCloseable {
    private final Lease lease;
    private final long bytes;
    private boolean closed;

    LeaseTurn(Lease lease, long bytes) {
        this.lease = lease;
        this.bytes = bytes;
    }

    /** Bytes of the offered tags that came back. */
    public long bytes() {
        return bytes;
    }

    /** Releases the lease, unless it is closed. Closing twice does nothing. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            lease.endTurn();
        }
    }

    @Override
    public String toString() {
        return "LeaseTurn[" + lease + "]";
    }
}
