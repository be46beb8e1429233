/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Receives a snapshot piece by piece. The writer must not call the same context. An exception that it throws comes out
 * of snapshot().
 */
@FunctionalInterface
public interface SnapshotWriter {
    /** Takes a piece of UTF-8 text, which may end inside a character. Returns true to go on, false to stop. */
    boolean write(byte[] utf8);
}
