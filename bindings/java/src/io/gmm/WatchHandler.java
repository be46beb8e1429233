/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/**
 * Receives the events of watched memory on the thread of the operation, which waits for it. So the handler must not
 * block. BUDGET comes on a thread of the library. The handler may free memory and query it. It must not allocate, close
 * a watcher, or pause, resume, move and compact: these are BUSY.
 *
 * <p>Its exceptions go to the thread's handler of uncaught exceptions, and refuse.
 */
@FunctionalInterface
public interface WatchHandler {
    /** Returns true to agree. False refuses PREPARE, so that the operation ends with BUSY; else it has no effect. */
    boolean hear(WatchInfo info);
}
