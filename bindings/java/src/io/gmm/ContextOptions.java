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
    boolean noLeakReport;
    boolean strictHost;

    /** The backend; AUTO when not set. */
    public ContextOptions backend(Backend value) {
        backend = value;
        return this;
    }

    /**
     * The receiver of messages. Without one, warnings and errors go to stderr when GMM_LOG is set. A logger that refers
     * to the context keeps it from the garbage collector.
     */
    public ContextOptions logger(Logger value) {
        logger = value;
        return this;
    }

    /** Host backend: the bytes that each device pretends to have; 0 means the machine's memory. */
    public ContextOptions hostMemory(long bytes) {
        Text.checkSize("the memory", bytes);
        hostMemory = bytes;
        return this;
    }

    /** Host backend: the number of devices; 0 means one. */
    public ContextOptions hostDevices(int count) {
        hostDevices = count;
        return this;
    }

    /**
     * Promises that the program allocates nothing while it captures a CUDA graph. An allocation on a stream then does
     * not ask the driver.
     */
    public ContextOptions noCapture() {
        noCapture = true;
        return this;
    }

    /** The logger does not hear of blocks that are live when the context ends. */
    public ContextOptions noLeakReport() {
        noLeakReport = true;
        return this;
    }

    /** Host backend: the CPU faults on DEVICE and VMM memory, as it would with a GPU. */
    public ContextOptions strictHost() {
        strictHost = true;
        return this;
    }

    /** As {@link Context#setDecommitAfterMillis}. */
    public ContextOptions decommitAfterMillis(long milliseconds) {
        decommitAfterMillis = milliseconds;
        return this;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
