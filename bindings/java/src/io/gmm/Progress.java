/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Told how far the copies of a pause or resume are, on whichever thread works, with locks of the library held: it must not call the library. What it
 * throws ends the operation, which is undone, and comes out of the call that asked for it.
 */
@FunctionalInterface
public interface Progress {
    /** Bytes that are done and all that there are. Returns true to go on, false to end the operation with CANCELLED. */
    boolean report(long done, long total);
}
