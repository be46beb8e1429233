/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * A handler for exhausted memory. The allocating thread calls it when a trim did not help. It may free, pause and trim,
 * but must not allocate from the same context. An exception that it throws comes out of the allocation.
 */
@FunctionalInterface
public interface OomHandler {
    /** Returns true to try again, false to let the allocation fail. */
    boolean outOfMemory(OomInfo info);
}
