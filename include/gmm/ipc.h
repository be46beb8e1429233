/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ipc.h
 * Sharing of memory and events with other processes of the same user, or of users that both sides name.
 */
#ifndef GMM_IPC_H
#define GMM_IPC_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The users who may share with a context, and the directory of its socket.
 *
 * Every field has a default. Processes of one user that see the same directory share without it.
 */
typedef struct gmm_ipc_desc {
  uint32_t struct_size;
  uint32_t flags; /**< must be 0 */
  /**
   * The directory of the exporter's socket. NULL: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-UID.
   *
   * GMM_IPC_DIR must be an absolute path of less than 1,024 bytes. Any other value counts as not set, and the first
   * export or import of the context writes a warning to the log.
   *
   * gmm creates a directory that is missing. The directory must belong to the user with mode 0700, unless `users` are
   * named. Containers share memory by sharing this directory.
   */
  const char *directory;
  /**
   * Further user ids that may import from this context, and from which it imports: each side names the other.
   *
   * With users the directory must be set. It must belong to root, to this user or to one of `users`. Only its owner may
   * write to it, unless it has the sticky bit.
   */
  const uint32_t *users;
  uint32_t user_count;
  uint32_t reserved;
} gmm_ipc_desc;

/**
 * Configures the directory and the users of sharing.
 *
 * The call must come before the context's first export or import. Both sides must have the same directory.
 *
 * @param desc  NULL: the defaults.
 * Errors: INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (a path that is not absolute or too long, users without a
 * directory, or more than 64 of them), NULL_ARGUMENT (users), BUSY (the context has exported or imported),
 * OUT_OF_HOST_MEMORY, FORKED.
 * Ownership: gmm copies the descriptor, its text and its list.
 */
GMM_API gmm_result gmm_ipc_configure(gmm_context *context, const gmm_ipc_desc *desc) GMM_NOEXCEPT;

/**
 * A handle of memory or of an event, to send by a pipe, socket or file.
 *
 * The bytes are plain data without pointers, little-endian. Only the library interprets them. Their layout may change
 * with the version byte inside.
 */
typedef struct gmm_ipc_handle {
  uint8_t bytes[256];
} gmm_ipc_handle;

/**
 * Exports a block to other processes as a handle, with the offset of `memory` inside the block.
 *
 * The first export of a context starts one thread, which answers importers.
 *
 * If gmm_query() reports ::GMM_IPC_ROUTE_FABRIC, another machine of the same NVLink domain imports the handle, too. The
 * driver then opens its fabric handle, which the bytes hold. So any process with the bytes and an IMEX channel opens
 * the memory, and the exporter is not asked. gmm neither counts nor revokes such importers. gmm_tag_info.foreign_bytes
 * has the bytes that they keep in a pause.
 *
 * Where the memory is a file of the process (everything on the host backend, HOST memory on a GPU), the first 32 driver
 * allocations of a context have files of their own, and so has all memory of a heap with ::GMM_HEAP_EXPORTABLE and of
 * ::GMM_ALLOC_DEDICATED. Other memory lies in one file, whose descriptor never leaves the process, and cannot be
 * exported. So much memory needs few descriptors.
 *
 * @param memory  any address in a block of DEVICE, VMM or HOST memory.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND (MANAGED), PAUSED, NOT_SUPPORTED (the device
 * cannot share such memory, or the memory has no file of its own), DRIVER, SYSTEM, FORKED.
 * Streams: the call neither queues work nor waits. The program orders the contents before it sends the handle.
 * Ownership: a handle keeps nothing alive. The memory must live until the importer has imported it.
 */
GMM_API gmm_result gmm_ipc_export(gmm_context *context, const void *memory, gmm_ipc_handle *out) GMM_NOEXCEPT;

/** The options of gmm_ipc_import(). */
typedef struct gmm_ipc_import_desc {
  uint32_t struct_size;
  uint32_t flags;    /**< must be 0 */
  gmm_device device; /**< the device that uses the memory; of the exporter's machine */
  uint32_t reserved;
  uint64_t timeout_ms; /**< milliseconds to wait for the exporter; 0: 5,000; GMM_FOREVER: without a limit */
} gmm_ipc_import_desc;

/**
 * Maps another process's memory.
 *
 * Another import of the same memory returns the same mapping and counts. In the exporting process the call returns the
 * original address, and the import keeps the memory there after gmm_free(). Such an import does not stand in the way of
 * a pause. The processes may run in different containers that share the socket directory.
 *
 * The memory lives until the exporter has freed it and every importer has closed it or died.
 *   - The exporter dies: VMM and HOST memory stays until it is closed, and gmm_query() reports ::GMM_POINTER_PEER_GONE.
 *     DEVICE memory by the driver's legacy handle ends with the exporter.
 *   - The exporter is another machine (::GMM_IPC_ROUTE_FABRIC): the memory lives until it is closed here, and nothing
 *     shows that the exporter freed it or ended.
 *   - The exporter forces a pause: gmm_query() reports ::GMM_STATE_REVOKED. Every other call with the memory fails with
 *     IPC_REVOKED, except gmm_ipc_close().
 *
 * @param desc  NULL: device 0, 5,000 ms.
 * @param[out] out  the address for which the handle was made.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_DEVICE, IPC_INVALID_HANDLE, IPC_PEER_GONE (also if
 * another user's socket directory is not accessible), IPC_REFUSED (another user), IPC_REVOKED, IPC_TIMEOUT,
 * NOT_SUPPORTED, OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Ownership: the caller closes each import with gmm_ipc_close(), not with gmm_free().
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_import(gmm_context *context, const gmm_ipc_handle *handle,
                                                const gmm_ipc_import_desc *desc, void **out) GMM_NOEXCEPT;

/**
 * Takes back one import; the last one unmaps the memory.
 *
 * @param memory  any address inside the imported block.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER, UNBALANCED, DRIVER, SYSTEM, FORKED.
 * Streams: gmm unmaps the memory after the work that is queued on the device.
 */
GMM_API gmm_result gmm_ipc_close(gmm_context *context, void *memory) GMM_NOEXCEPT;

/** The type of a file descriptor of memory. */
typedef uint32_t gmm_fd_type;
enum {
  /** Export: OPAQUE for VMM memory of a GPU, FILE for other memory. Import: FILE for a file or memfd, else OPAQUE. */
  GMM_FD_DEFAULT = 0,
  /**
   * The driver's own type, for VMM memory: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
   *
   * Vulkan takes it as VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT.
   */
  GMM_FD_OPAQUE = 1,
  GMM_FD_FILE = 2,    /**< a memory file, which mmap() maps: HOST memory, and all memory of the host backend */
  GMM_FD_DMA_BUF = 3, /**< a Linux dma-buf of the whole allocation, if gmm_query() reports ::GMM_IPC_ROUTE_DMA_BUF */
  GMM_FD_VULKAN = 4   /**< import only: an opaque descriptor that Vulkan made (vkGetMemoryFdKHR) */
};

/** The answer of gmm_ipc_export_fd(). */
typedef struct gmm_ipc_fd_info {
  uint32_t struct_size;
  gmm_fd_type type;  /**< the type that the descriptor has; never DEFAULT */
  int32_t fd;        /**< the descriptor */
  gmm_device device; /**< the device of the memory */
  uint64_t offset;   /**< bytes from the start of the allocation to the exported address */
  uint64_t size;     /**< bytes of the allocation, which an importer must give */
} gmm_ipc_fd_info;

/**
 * Opens a file descriptor of the driver's allocation that a block lies in, for example for VK_KHR_external_memory_fd.
 *
 * VMM and HOST memory have one. DEVICE memory has one if gmm_query() reports ::GMM_IPC_ROUTE_FD, or
 * ::GMM_IPC_ROUTE_DMA_BUF for that type. A descriptor names one driver allocation, so a VMM block over several of them
 * has none. Blocks of a heap with ::GMM_HEAP_EXPORTABLE always have one, and ::GMM_ALLOC_DEDICATED gives a block an
 * allocation of its own.
 *
 * Pause and gmm_move(). A descriptor names physical memory, and gmm_pause() and gmm_move() put other memory behind a
 * VMM block. gmm_compact() with ::GMM_COMPACT_LIVE does so, too, but not in a heap with ::GMM_HEAP_EXPORTABLE.
 *   - Before the call, the importer ends its work with the memory and destroys its objects on it: in Vulkan the
 *     buffers and images, then vkFreeMemory(). Memory that an importer or an open descriptor still holds does not
 *     return to the device. gmm_tag_info.foreign_bytes counts it.
 *   - After the resume or the move the program exports the block anew and imports the new descriptor. The block's
 *     address has not changed. Its offset and its allocation's size may have.
 *   - Views of old memory stay valid and do not see later writes through the block's address.
 *
 * @param memory  any address inside the block.
 * @param type  a type that the memory has.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND, INVALID_VALUE (the type does
 * not exist), PAUSED, NOT_SUPPORTED (the memory has no descriptor of this type), DRIVER, SYSTEM, FORKED.
 * Ownership: the caller closes the descriptor, which keeps the memory alive. gmm does not count it as an importer and
 * cannot revoke it.
 */
GMM_API gmm_result gmm_ipc_export_fd(gmm_context *context, const void *memory, gmm_fd_type type,
                                     gmm_ipc_fd_info *out) GMM_NOEXCEPT;

/** The options of gmm_ipc_import_fd(). */
typedef struct gmm_ipc_fd_desc {
  uint32_t struct_size;
  uint32_t flags; /**< must be 0 */
  gmm_fd_type type;
  gmm_device device; /**< the device that uses the memory */
  /** Bytes of the allocation behind the descriptor, from its maker. FILE: a multiple of the page; OPAQUE: of 2 MiB. */
  uint64_t size;
} gmm_ipc_fd_desc;

/**
 * Maps the memory behind a descriptor of another library, of Vulkan, or of gmm_ipc_export_fd() in another process.
 *
 * FILE becomes HOST memory, OPAQUE becomes VMM memory, VULKAN and DMA_BUF become DEVICE memory. Each import is a
 * mapping of its own, even of the same descriptor. gmm takes desc->size from the caller, and refuses a file or handle
 * that is smaller if the system or the driver knows its size.
 *
 * @param fd  the descriptor.
 * @param desc  must not be NULL.
 * @param[out] out  the start of the allocation.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (type or descriptor), INVALID_SIZE,
 * INVALID_DEVICE, NOT_SUPPORTED (the device takes no such descriptor), OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Ownership: the descriptor stays the caller's, who may close it after the call. The caller closes the memory with
 * gmm_ipc_close().
 */
GMM_NODISCARD GMM_API gmm_result gmm_ipc_import_fd(gmm_context *context, int32_t fd, const gmm_ipc_fd_desc *desc,
                                                   void **out) GMM_NOEXCEPT;

/** The answer of gmm_ipc_export_legacy(). */
typedef struct gmm_ipc_legacy_info {
  uint32_t struct_size;
  gmm_device device; /**< the device of the memory */
  uint64_t offset;   /**< bytes from the start of the driver's allocation to the exported address */
  uint64_t size;     /**< bytes of the driver's allocation */
  uint8_t bytes[64]; /**< the driver's own handle: CUipcMemHandle or cudaIpcMemHandle_t */
} gmm_ipc_legacy_info;

/**
 * Returns the driver's legacy handle of a block, for libraries that take no other (Numba, UCX, NCCL).
 *
 * cuIpcOpenMemHandle() opens the driver's whole allocation, and its caller adds the offset.
 *
 * @param memory  any address in DEVICE memory for which gmm_query() reports ::GMM_IPC_ROUTE_LEGACY.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, UNKNOWN_POINTER, ALREADY_FREED, NOT_SUPPORTED, DRIVER, FORKED.
 * Ownership: gmm does not see who opens the handle. The program must not free the memory before the other side has
 * closed it.
 */
GMM_API gmm_result gmm_ipc_export_legacy(gmm_context *context, const void *memory,
                                         gmm_ipc_legacy_info *out) GMM_NOEXCEPT;

/**
 * Exports an event that was created with ::GMM_EVENT_SHARED as a handle.
 *
 * Errors: NULL_ARGUMENT, INVALID_HANDLE (an event without that flag, or an imported one), DRIVER, SYSTEM, FORKED.
 * Ownership: the handle keeps nothing alive.
 */
GMM_API gmm_result gmm_event_export(gmm_event *event, gmm_ipc_handle *out) GMM_NOEXCEPT;

/**
 * Imports another process's event.
 *
 * gmm_stream_wait_event(), gmm_event_synchronize() and gmm_event_query() see the last record of the event's maker at
 * the time of the call. Only the maker records: gmm_event_record() fails with INVALID_HANDLE for an imported event. In
 * the process that made the event the call returns another event with the same state.
 *
 * If the maker dies, a wait for its work ends, and later calls fail with IPC_PEER_GONE. On CUDA the driver alone ends
 * waits that it has already queued.
 *
 * @param desc  as for gmm_ipc_import().
 * Errors: as gmm_ipc_import().
 * Ownership: the caller destroys the event with gmm_event_destroy().
 */
GMM_NODISCARD GMM_API gmm_result gmm_event_import(gmm_context *context, const gmm_ipc_handle *handle,
                                                  const gmm_ipc_import_desc *desc, gmm_event **out) GMM_NOEXCEPT;

/** The type of a semaphore of another API. */
typedef uint32_t gmm_semaphore_type;
enum {
  GMM_SEMAPHORE_BINARY_FD = 1,   /**< the opaque descriptor of a binary semaphore; it has no values: pass 0 */
  GMM_SEMAPHORE_TIMELINE_FD = 2, /**< the opaque descriptor of a timeline semaphore, which counts */
  GMM_SEMAPHORE_SYNC_FD = 3,     /**< a Linux sync file, on the host backend: it is waited for only, with the value 0 */
  GMM_SEMAPHORE_CALLS = 4        /**< functions of the program, on the host backend */
};

/**
 * A function that waits for a value of a semaphore, or signals it: vkWaitSemaphores() and vkSignalSemaphore().
 *
 * It runs on the worker of a host stream, which does its further work when the function returns. 0 means done. gmm logs
 * any other answer as an error, and the stream's further work runs all the same. The function must not call gmm.
 */
typedef int32_t (*gmm_semaphore_fn)(void *user, uint64_t value);

/** The functions of ::GMM_SEMAPHORE_CALLS. */
typedef struct gmm_semaphore_calls {
  gmm_semaphore_fn wait;   /**< NULL: the semaphore is signalled only */
  gmm_semaphore_fn signal; /**< NULL: the semaphore is waited for only */
  void *user;
} gmm_semaphore_calls;

/** The options of gmm_event_import_semaphore(). */
typedef struct gmm_semaphore_desc {
  uint32_t struct_size;
  gmm_semaphore_type type;
  gmm_device device; /**< the device whose streams use the semaphore; gmm_device_info.uuid is Vulkan's deviceUUID */
  int32_t fd;        /**< of the types that end in FD: the descriptor; else it must be 0 */
  gmm_semaphore_calls calls; /**< of CALLS; else it must be zero */
} gmm_semaphore_desc;

/**
 * Makes an event of a semaphore of Vulkan or another API, so that streams and queues order each other.
 *
 * gmm_event_record() signals the semaphore with a value when the stream comes that far. gmm_stream_wait_event() makes a
 * stream wait until the semaphore has the value. A wait for a binary semaphore resets it. gmm makes no semaphores: the
 * graphics API does, and exports them (vkGetSemaphoreFdKHR). A driver does not read a semaphore's value, so
 * gmm_event_query() and gmm_event_synchronize() fail with NOT_SUPPORTED. To wait on the CPU, record a plain event
 * behind gmm_stream_wait_event() and wait for that.
 *
 * @param desc  must not be NULL.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_VALUE (type, descriptor or functions), INVALID_DEVICE,
 * NOT_SUPPORTED (the backend has no semaphores of this type), OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Streams: only those of desc->device use the event. Both functions queue work and do not wait. If a stream used it,
 * gmm_event_destroy() waits for the device's work, because the driver forbids the end of a semaphore that is in use. So
 * the program signals the values that streams wait for before that call.
 * Ownership: the descriptor stays the caller's. The caller destroys the event with gmm_event_destroy(). `calls.user`
 * must live until then.
 */
GMM_NODISCARD GMM_API gmm_result gmm_event_import_semaphore(gmm_context *context, const gmm_semaphore_desc *desc,
                                                            gmm_event **out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
