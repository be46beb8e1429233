/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a context opened. */
public final class ContextInfo {
    private final Backend backend;
    private final int deviceCount;
    private final String backendName;
    private final String driverVersion;
    private final long decommitAfterMillis;

    ContextInfo(gmm_context_info from) {
        this.backend = Backend.of(from.getBackend());
        this.deviceCount = from.getDevice_count();
        this.backendName = from.getBackend_name();
        this.driverVersion = from.getDriver_version();
        this.decommitAfterMillis = from.getDecommit_after_ms();
    }

    /** The chosen backend. */
    public Backend backend() {
        return backend;
    }

    /** The number of devices. */
    public int deviceCount() {
        return deviceCount;
    }

    /** "host" or "cuda". */
    public String backendName() {
        return backendName;
    }

    /** The driver's version; on the host backend the kernel's release. */
    public String driverVersion() {
        return driverVersion;
    }

    /**
     * The milliseconds after which idle memory goes back to the driver, with the default resolved, or {@link
     * Context#DECOMMIT_NEVER}.
     */
    public long decommitAfterMillis() {
        return decommitAfterMillis;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
