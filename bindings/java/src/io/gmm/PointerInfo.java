/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The description of an address. */
public final class PointerInfo {
    private final Kind kind;
    private final long base;
    private final long size;
    private final long reservedSize;
    private final int device;
    private final int tag;
    private final State state;
    private final Usm usm;
    private final int ipcRoutes;
    private final long allocationBase;
    private final long allocationSize;
    private final long devicePointer;
    private final long generation;
    private final boolean hostAccessible;
    private final boolean deviceAccessible;
    private final boolean legacyIpc;
    private final boolean fdIpc;
    private final boolean dmaBufIpc;
    private final boolean peerGone;
    private final boolean fabricIpc;
    private final boolean comm;

    PointerInfo(gmm_pointer_info from) {
        this.kind = Kind.of(from.getKind());
        this.base = from.getBase();
        this.size = from.getSize();
        this.reservedSize = from.getReserved_size();
        this.device = from.getDevice();
        this.tag = from.getTag();
        this.state = State.of(from.getState());
        this.usm = Usm.of(from.getUsm());
        this.ipcRoutes = from.getIpc_routes();
        this.allocationBase = from.getAllocation_base();
        this.allocationSize = from.getAllocation_size();
        this.devicePointer = from.getDevice_pointer();
        this.generation = from.getGeneration();
        this.hostAccessible = (from.getFlags() & NativeConstants.GMM_POINTER_HOST_ACCESSIBLE) != 0;
        this.deviceAccessible = (from.getFlags() & NativeConstants.GMM_POINTER_DEVICE_ACCESSIBLE) != 0;
        this.legacyIpc = (from.getIpc_routes() & NativeConstants.GMM_IPC_ROUTE_LEGACY) != 0;
        this.fdIpc = (from.getIpc_routes() & NativeConstants.GMM_IPC_ROUTE_FD) != 0;
        this.dmaBufIpc = (from.getIpc_routes() & NativeConstants.GMM_IPC_ROUTE_DMA_BUF) != 0;
        this.peerGone = (from.getFlags() & NativeConstants.GMM_POINTER_PEER_GONE) != 0;
        this.fabricIpc = (from.getIpc_routes() & NativeConstants.GMM_IPC_ROUTE_FABRIC) != 0;
        this.comm = (from.getFlags() & NativeConstants.GMM_POINTER_COMM) != 0;
    }

    /** The kind of memory. */
    public Kind kind() {
        return kind;
    }

    /** The start of the block. */
    public long base() {
        return base;
    }

    /** The requested bytes. */
    public long size() {
        return size;
    }

    /** The bytes that the block takes, rounding included. */
    public long reservedSize() {
        return reservedSize;
    }

    /** The device; -1 for foreign host memory. */
    public int device() {
        return device;
    }

    /** The tag's number; 0 for memory that gmm did not allocate. */
    public int tag() {
        return tag;
    }

    /** The state of the address. */
    public State state() {
        return state;
    }

    /** Who can use the address. */
    public Usm usm() {
        return usm;
    }

    /** Ways to share it, as bits of the C interface. */
    public int ipcRoutes() {
        return ipcRoutes;
    }

    /** The start of the driver's allocation that the block lies in. */
    public long allocationBase() {
        return allocationBase;
    }

    /** Bytes of the driver's allocation. */
    public long allocationSize() {
        return allocationSize;
    }

    /** The address that devices use. It is another one for some pinned memory only. */
    public long devicePointer() {
        return devicePointer;
    }

    /** Counts the pauses of the memory. */
    public long generation() {
        return generation;
    }

    /** The CPU may read and write it through the same address. */
    public boolean hostAccessible() {
        return hostAccessible;
    }

    /** Devices may read and write it. */
    public boolean deviceAccessible() {
        return deviceAccessible;
    }

    /** The driver's 64-byte handle can share it. */
    public boolean legacyIpc() {
        return legacyIpc;
    }

    /** A file descriptor can share it. */
    public boolean fdIpc() {
        return fdIpc;
    }

    /** Whether it can be shared as a Linux dma-buf. */
    public boolean dmaBufIpc() {
        return dmaBufIpc;
    }

    /** The memory is imported, and its exporter has ended. */
    public boolean peerGone() {
        return peerGone;
    }

    /** Another machine of the same NVLink domain can import its handle. */
    public boolean fabricIpc() {
        return fabricIpc;
    }

    /** The block is memory for network libraries: {@link AllocOptions#comm}. */
    public boolean comm() {
        return comm;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
