/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

/** The type of a file descriptor of memory. */
public enum FdType {
    /** Export: OPAQUE for VMM memory of a GPU, FILE for all else. Import: FILE for a file or memfd, else OPAQUE. */
    DEFAULT(0),
    /** The driver's own descriptor, which Vulkan takes as VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT. VMM memory. */
    OPAQUE(1),
    /** A memory file. HOST memory, and all memory of the host backend. */
    FILE(2),
    /** A Linux dma-buf of the whole allocation. */
    DMA_BUF(3),
    /** Import only: an opaque descriptor that Vulkan or OpenGL made. */
    VULKAN(4);

    private final int value;

    FdType(int value) {
        this.value = value;
    }

    /** The number in the C interface. */
    public int value() {
        return value;
    }
}
