/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Asked on the allocating thread when memory is short and trimming did not help. It may free, pause and trim; it must not allocate from
 * the same context. An exception that it throws comes out of the allocation.
 */
@FunctionalInterface
public interface OomHandler {
    /** Returns true to try again, false to let the allocation fail. */
    boolean outOfMemory(OomInfo info);
}
