/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ipc.h
 * Sharing memory with other processes of the same user.
 */
#ifndef GMM_IPC_H
#define GMM_IPC_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A handle to send anywhere: pipe, socket, file. Plain bytes without pointers, little-endian; what they mean is the
 * library's business and may change with its version byte.
 */
typedef struct gmm_ipc_handle {
  uint8_t bytes[192];
} gmm_ipc_handle;

/**
 * Makes a handle for the block that `memory` lies in, with the offset of `memory` inside it. DEVICE, VMM and
 * HOST memory. The handle keeps nothing alive: the memory must live until the importer has it.
 * The first export starts one thread that answers importers.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND (MANAGED), PAUSED, NOT_SUPPORTED, DRIVER, SYSTEM, FORKED.
 * Stream behaviour: none; order the contents before sending the handle. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_export(gmm_context *context, const void *memory, gmm_ipc_handle *out) GMM_NOEXCEPT;

typedef struct gmm_ipc_import_desc {
  uint32_t struct_size;
  uint32_t flags;      /**< must be 0 */
  gmm_device device;   /**< the device that shall use it; of the exporter's machine */
  uint32_t timeout_ms; /**< how long to wait for the exporter; 0: 5,000 */
} gmm_ipc_import_desc;

/**
 * Maps another process's memory. Importing the same memory again gives the same mapping, counted. In the exporting process
 * it gives the original address. A process of another user gets IPC_REFUSED, or IPC_PEER_GONE where it cannot even see the exporter's
 * socket directory.
 * @param[out] out  the address that the handle was made for. Give it back with gmm_ipc_close(), not gmm_free().
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_DEVICE, IPC_INVALID_HANDLE, IPC_PEER_GONE, IPC_REFUSED, IPC_TIMEOUT, NOT_SUPPORTED,
 * OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_import(gmm_context *context, const gmm_ipc_handle *handle,
                                                const gmm_ipc_import_desc *desc, void **out) GMM_NOEXCEPT;

/**
 * Takes back one import. The mapping goes with the last one, after what is queued on the device.
 * @param memory  any address inside the imported block. Errors: NULL_ARGUMENT, UNKNOWN_POINTER, UNBALANCED, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_close(gmm_context *context, void *memory) GMM_NOEXCEPT;

/**
 * Opens a file descriptor for the driver's allocation that the block lies in, for example for Vulkan's VK_KHR_external_memory_fd.
 * VMM and HOST memory, and DEVICE memory whose gmm_query() tells ::GMM_IPC_ROUTE_FD. A descriptor speaks of one driver allocation: a
 * VMM block that lies over several is NOT_SUPPORTED, which ::GMM_ALLOC_DEDICATED avoids.
 * The caller owns the descriptor and closes it; it keeps the memory alive.
 * @param[out] fd  @param[out] offset  bytes from the start of the allocation to `memory`; may be NULL.
 * @param[out] size  bytes of the allocation; may be NULL.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND, PAUSED, NOT_SUPPORTED, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_export_fd(gmm_context *context, const void *memory, int32_t *fd, uint64_t *offset,
                                     uint64_t *size) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
