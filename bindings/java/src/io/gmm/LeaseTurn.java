/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** A turn of a lease, until close(), which releases the lease unless that is closed. */
public final class LeaseTurn extends Once {
    private final Lease lease;
    private final long bytes;

    LeaseTurn(Lease lease, long bytes) {
        super(lease::endTurn);
        this.lease = lease;
        this.bytes = bytes;
    }

    /** Bytes of the offered tags that came back. */
    public long bytes() {
        return bytes;
    }

    @Override
    public String toString() {
        return "LeaseTurn[" + lease + "]";
    }
}
