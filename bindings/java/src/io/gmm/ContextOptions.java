/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** How to open a context. Each method changes this object and returns it. */
public final class ContextOptions {
    Backend backend = Backend.AUTO;
    Logger logger;
    long hostMemory;
    int hostDevices;
    long decommitAfterMillis;
    boolean noCapture;

    /** The backend; AUTO when not set. */
    public ContextOptions backend(Backend value) {
        backend = value;
        return this;
    }

    /** Where messages go; none: warnings and errors to stderr when GMM_LOG is set. A logger that refers to the context keeps it from the garbage collector. */
    public ContextOptions logger(Logger value) {
        logger = value;
        return this;
    }

    /** Host backend: bytes each device pretends to have; 0: the machine's memory. */
    public ContextOptions hostMemory(long bytes) {
        hostMemory = bytes;
        return this;
    }

    /** Host backend: how many devices it shows; 0: one. */
    public ContextOptions hostDevices(int count) {
        hostDevices = count;
        return this;
    }

    /** The program allocates nothing while it captures a CUDA graph: an allocation on a stream then asks the driver nothing. */
    public ContextOptions noCapture() {
        noCapture = true;
        return this;
    }

    /** As {@link Context#setDecommitAfterMillis}. */
    public ContextOptions decommitAfterMillis(long milliseconds) {
        decommitAfterMillis = milliseconds;
        return this;
    }
}
