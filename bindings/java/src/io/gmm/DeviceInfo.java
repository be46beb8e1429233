/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** What a device is and can do. */
public final class DeviceInfo {
    private final int device;
    private final int capabilities;
    private final int kinds;
    private final long totalMemory;
    private final long freeMemory;
    private final long granularity;
    private final String name;
    private final byte[] uuid;
    private final boolean canPause;
    private final boolean canExportFd;
    private final boolean canLegacyIpc;
    private final boolean canConcurrentManaged;
    private final boolean canPin;
    private final boolean canPageable;
    private final boolean canHostNuma;
    private final boolean canHostPageTables;
    private final boolean isCpu;

    DeviceInfo(gmm_device_info from) {
        this.device = from.getDevice();
        this.capabilities = from.getCapabilities();
        this.kinds = from.getKinds();
        this.totalMemory = from.getTotal_memory();
        this.freeMemory = from.getFree_memory();
        this.granularity = from.getGranularity();
        this.name = from.getName();
        this.uuid = from.getUuid();
        this.canPause = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_PAUSE) != 0;
        this.canExportFd = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_EXPORT_FD) != 0;
        this.canLegacyIpc = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_LEGACY_IPC) != 0;
        this.canConcurrentManaged = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_CONCURRENT_MANAGED) != 0;
        this.canPin = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_PIN) != 0;
        this.canPageable = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_PAGEABLE) != 0;
        this.canHostNuma = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_HOST_NUMA) != 0;
        this.canHostPageTables = (from.getCapabilities() & NativeConstants.GMM_DEVICE_CAN_HOST_PAGE_TABLES) != 0;
        this.isCpu = (from.getCapabilities() & NativeConstants.GMM_DEVICE_IS_CPU) != 0;
    }

    /** The device's number, from 0. */
    public int device() {
        return device;
    }

    /** The capabilities as bits of the C interface. */
    public int capabilities() {
        return capabilities;
    }

    /** The kinds that the device has, a bit each; see {@link #has}. */
    public int kinds() {
        return kinds;
    }

    /** Total memory in bytes. */
    public long totalMemory() {
        return totalMemory;
    }

    /** Free memory in bytes, as the driver or the system reports it now. */
    public long freeMemory() {
        return freeMemory;
    }

    /** The granularity in bytes: VMM memory comes in multiples of it. */
    public long granularity() {
        return granularity;
    }

    /** The device's name. */
    public String name() {
        return name;
    }

    /** The device's UUID, 16 bytes. */
    public byte[] uuid() {
        return uuid.clone();
    }

    /** VMM memory can pause and resume. */
    public boolean canPause() {
        return canPause;
    }

    /** VMM and HOST memory can be exported as a file descriptor. */
    public boolean canExportFd() {
        return canExportFd;
    }

    /** DEVICE memory has the driver's 64-byte handle. */
    public boolean canLegacyIpc() {
        return canLegacyIpc;
    }

    /** Host and device may use managed memory at once; prefetch works. */
    public boolean canConcurrentManaged() {
        return canConcurrentManaged;
    }

    /** The program's own memory can be pinned. */
    public boolean canPin() {
        return canPin;
    }

    /** The device reads ordinary host memory. */
    public boolean canPageable() {
        return canPageable;
    }

    /** VMM memory may lie on a NUMA node of the host. */
    public boolean canHostNuma() {
        return canHostNuma;
    }

    /** The device uses the host's page tables, as on Grace Hopper. */
    public boolean canHostPageTables() {
        return canHostPageTables;
    }

    /** The device is no GPU but the host backend's. */
    public boolean isCpu() {
        return isCpu;
    }

    /** Whether the device has this kind of memory. */
    public boolean has(Kind kind) {
        return (kinds & (1 << kind.value())) != 0;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
