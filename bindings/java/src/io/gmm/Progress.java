/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Receives the progress of a pause's or resume's copies. It runs on the thread that copies, with locks of the library
 * held, so it must not call the library. Its exception ends and undoes the operation, and comes out of the call that
 * asked for it.
 */
@FunctionalInterface
public interface Progress {
    /** Takes the bytes done and the bytes in all. Returns true to go on, false to end the operation with CANCELLED. */
    boolean report(long done, long total);
}
