/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ipc.h
 * Sharing memory and events with other processes of the same user, or of users that both sides name.
 */
#ifndef GMM_IPC_H
#define GMM_IPC_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Who may share with this context, and where its socket stands. Everything has a default: no call is needed to share among
 * processes of one user that see the same directory.
 */
typedef struct gmm_ipc_config {
  uint32_t struct_size;
  uint32_t user_count;
  /**
   * The directory of the exporter's socket; NULL: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-<uid>. Made if it is missing. It
   * must belong to the user with mode 0700, unless `users` are named. Containers share memory by sharing this directory.
   */
  const char *directory;
  /**
   * Further user ids that may import from this context, and that it imports from: in both directions, so each side names the other. Then the
   * directory must be set, belong to root, this user or one of `users`, and be writable by its owner only, unless it has the sticky bit.
   */
  const uint32_t *users;
  uint32_t flags; /**< must be 0 */
  uint32_t reserved;
} gmm_ipc_config;

/**
 * Sets the directory and the users. Before the first export or import of the context; both sides must have the same directory.
 * @param config  NULL: the defaults. Copied.
 * Errors: INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (a path that is not absolute or too long, users without a directory, or more than
 * 64 of them), NULL_ARGUMENT (users), BUSY (something was exported or imported), OUT_OF_HOST_MEMORY, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_configure(gmm_context *context, const gmm_ipc_config *config) GMM_NOEXCEPT;

/**
 * A handle to send anywhere: pipe, socket, file. Plain bytes without pointers, little-endian; what they mean is the
 * library's business and may change with its version byte. Memory and events have handles of the same form.
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
 * socket directory. The processes may run in different containers when they share that directory.
 *
 * The memory lives until the exporter freed it and the last importer closed it, or died. When the exporter dies, VMM and HOST memory stays
 * until it is closed, and gmm_query() tells ::GMM_POINTER_PEER_GONE; DEVICE memory by the driver's legacy handle goes with the exporter. When the
 * exporter forces a pause, gmm_query() tells ::GMM_STATE_REVOKED and every other call with the memory fails with IPC_REVOKED, but gmm_ipc_close().
 * @param[out] out  the address that the handle was made for. Give it back with gmm_ipc_close(), not gmm_free().
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_DEVICE, IPC_INVALID_HANDLE, IPC_PEER_GONE, IPC_REFUSED, IPC_REVOKED, IPC_TIMEOUT, NOT_SUPPORTED,
 * OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_import(gmm_context *context, const gmm_ipc_handle *handle,
                                                const gmm_ipc_import_desc *desc, void **out) GMM_NOEXCEPT;

/**
 * Takes back one import. The mapping goes with the last one, after what is queued on the device.
 * @param memory  any address inside the imported block. Errors: NULL_ARGUMENT, UNKNOWN_POINTER, UNBALANCED, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_close(gmm_context *context, void *memory) GMM_NOEXCEPT;

/** What a file descriptor of memory is. */
typedef uint32_t gmm_fd_type;
enum {
  /** Export: OPAQUE for VMM memory of a GPU, FILE for all else. Import: FILE for a file or memfd, else OPAQUE. */
  GMM_FD_DEFAULT = 0,
  /** The driver's own (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), which Vulkan takes as VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT. VMM memory. */
  GMM_FD_OPAQUE = 1,
  GMM_FD_FILE = 2,    /**< a memory file, which mmap() maps. HOST memory, and all memory of the host backend */
  GMM_FD_DMA_BUF = 3, /**< a Linux dma-buf of the whole allocation, where gmm_query() tells ::GMM_IPC_ROUTE_DMA_BUF */
  GMM_FD_VULKAN = 4   /**< import only: an opaque descriptor that Vulkan or OpenGL made (vkGetMemoryFdKHR) */
};

/**
 * Opens a file descriptor for the driver's allocation that the block lies in, for example for Vulkan's VK_KHR_external_memory_fd.
 * VMM and HOST memory, and DEVICE memory whose gmm_query() tells ::GMM_IPC_ROUTE_FD, or ::GMM_IPC_ROUTE_DMA_BUF for that type. A descriptor
 * speaks of one driver allocation: a VMM block that lies over several is NOT_SUPPORTED, which ::GMM_ALLOC_DEDICATED avoids.
 * The caller owns the descriptor and closes it; it keeps the memory alive, is not counted as an importer and cannot be revoked.
 * @param type  a type that the memory has.
 * @param[out] fd  @param[out] offset  bytes from the start of the allocation to `memory`; may be NULL.
 * @param[out] size  bytes of the allocation, as an importer has to give it; may be NULL.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND, INVALID_VALUE (no such type), PAUSED, NOT_SUPPORTED (the memory has
 * no descriptor of this type), DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_export_fd(gmm_context *context, const void *memory, gmm_fd_type type, int32_t *fd,
                                     uint64_t *offset, uint64_t *size) GMM_NOEXCEPT;

typedef struct gmm_import_fd_desc {
  uint32_t struct_size;
  gmm_fd_type type;
  uint64_t
      size; /**< bytes of the allocation behind the descriptor, as its maker tells. FILE: a multiple of the page; OPAQUE: of 2 MiB */
  gmm_device device; /**< the device that shall use it */
  uint32_t flags;    /**< must be 0 */
} gmm_import_fd_desc;

/**
 * Maps the memory behind a descriptor that somebody else made: another library, Vulkan, or gmm_ipc_export_fd() in another process.
 * FILE becomes HOST memory, OPAQUE VMM memory, VULKAN and DMA_BUF DEVICE memory. Each import is a mapping of its own, also of the same
 * descriptor. The size is the maker's word: a file or handle that is smaller is refused where the system or driver tells.
 * @param fd  stays the caller's, who may close it at once.
 * @param[out] out  the start of the allocation. Give it back with gmm_ipc_close().
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (type or descriptor), INVALID_SIZE, INVALID_DEVICE, NOT_SUPPORTED (the device
 * takes no such descriptor), OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_import_fd(gmm_context *context, int32_t fd, const gmm_import_fd_desc *desc,
                                               void **out) GMM_NOEXCEPT;

/** The driver's own handle, CUipcMemHandle or cudaIpcMemHandle_t. */
typedef struct gmm_ipc_legacy_handle {
  uint8_t bytes[64];
} gmm_ipc_legacy_handle;

/**
 * Gives the driver's legacy handle for libraries that speak no other (Numba, UCX, NCCL): DEVICE memory whose gmm_query() tells
 * ::GMM_IPC_ROUTE_LEGACY. Who opens it with cuIpcOpenMemHandle() gets the driver's whole allocation and adds the offset; gmm does not see it, so
 * the memory must not be freed before the other side has closed it.
 * @param[out] out  @param[out] offset  bytes from the start of the driver's allocation to `memory`.
 * @param[out] size  bytes of the driver's allocation; may be NULL.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, ALREADY_FREED, NOT_SUPPORTED, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_export_legacy(gmm_context *context, const void *memory, gmm_ipc_legacy_handle *out,
                                         uint64_t *offset, uint64_t *size) GMM_NOEXCEPT;

/**
 * Makes an event that other processes can wait for: a producer records it behind its writes, a consumer's stream waits on the
 * device for it. Otherwise an event as from gmm_event_create(); ended with gmm_event_destroy(), which closes it for all importers that live.
 * Errors: NULL_ARGUMENT, INVALID_DEVICE, NOT_SUPPORTED, OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_event_create(gmm_context *context, gmm_device device,
                                                      gmm_event **out) GMM_NOEXCEPT;

/**
 * Makes a handle for an event of gmm_ipc_event_create(). It keeps nothing alive.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE (another event, or one that was imported), DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_ipc_event_export(gmm_context *context, gmm_event *event, gmm_ipc_handle *out) GMM_NOEXCEPT;

/**
 * Opens another process's event: gmm_stream_wait_event(), gmm_event_synchronize() and gmm_event_query() see what its maker recorded last, at
 * the time of the call. Only the maker records: an imported event is INVALID_HANDLE for gmm_event_record(); make one for the way back. A wait
 * for work of a maker that died ends, and the calls fail with IPC_PEER_GONE from then on. (CUDA: within the driver what is queued already is the
 * driver's to end.) In the process that made the event it is another event of the same.
 * @param desc  as for gmm_ipc_import().  @param[out] out  end it with gmm_event_destroy().
 * Errors: as gmm_ipc_import(). Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_event_import(gmm_context *context, const gmm_ipc_handle *handle,
                                                      const gmm_ipc_import_desc *desc, gmm_event **out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
