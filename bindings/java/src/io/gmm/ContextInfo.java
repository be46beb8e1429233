/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a context opened. */
public final class ContextInfo {
    private final Backend backend;
    private final int deviceCount;
    private final String backendName;
    private final String driverVersion;

    ContextInfo(gmm_context_info from) {
        this.backend = Backend.of(from.getBackend());
        this.deviceCount = from.getDevice_count();
        this.backendName = from.getBackend_name();
        this.driverVersion = from.getDriver_version();
    }

    /** The backend that was taken. */
    public Backend backend() {
        return backend;
    }

    /** How many devices it shows. */
    public int deviceCount() {
        return deviceCount;
    }

    /** "host" or "cuda". */
    public String backendName() {
        return backendName;
    }

    /** As the driver tells it; the kernel's release on the host. */
    public String driverVersion() {
        return driverVersion;
    }
}
