/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * Allocation. A plain pointer is the currency: every function but gmm_free() takes an address
 * anywhere inside a block.
 */
#ifndef GMM_MEMORY_H
#define GMM_MEMORY_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  /**
   * The block gets a driver allocation of its own, so that it starts where the driver's allocation starts: for
   * driver calls that look at the whole allocation (legacy IPC handles passed on without an offset, NCCL registration).
   * Slower, and rounded up to the granularity.
   */
  GMM_ALLOC_DEDICATED = 1u << 0,
  GMM_ALLOC_ZERO = 1u << 1 /**< the bytes read as zero; filled in stream order */
};

typedef struct gmm_alloc_desc {
  uint32_t struct_size;
  gmm_kind kind;      /**< UNSPECIFIED: DEVICE */
  gmm_device device;  /**< for HOST and MANAGED memory: the device it is counted for */
  gmm_tag tag;        /**< CURRENT: the thread's current tag */
  gmm_stream stream;  /**< the stream on which the block is used first */
  uint64_t alignment; /**< bytes, a power of two up to 2 MiB; 0: 256 */
  uint32_t flags;     /**< GMM_ALLOC_* */
  uint32_t reserved;
} gmm_alloc_desc;

/**
 * Allocates `size` bytes.
 *
 * The block is usable at once in the order of `desc->stream`; on another stream, or by the host, after work that orders it behind
 * that stream. A block that was freed on the same stream may come back at once. A stream in graph capture gets
 * memory of the graph's own (stream.h). Does not wait for streams, but where a VMM heap would otherwise take much more than was ever live at once, as
 * what is free is still in use by queued work: then half a second at most, and seldom again. When memory runs out it waits for all of them.
 *
 * @param size  bytes, at least 1. Rounded up to a size class: at most 12.5% more, or to a multiple of 256.
 * @param desc  NULL: kind DEVICE, device 0, the current tag, the default stream.
 * @param[out] out  the address, aligned to 256 bytes or to desc->alignment. Free it with gmm_free().
 * Errors: NULL_ARGUMENT, INVALID_SIZE, SIZE_OVERFLOW, INVALID_KIND, INVALID_DEVICE, INVALID_TAG, INVALID_ALIGNMENT,
 * INVALID_FLAGS, INVALID_DESCRIPTOR, LIMIT_EXCEEDED, OUT_OF_MEMORY, OUT_OF_HOST_MEMORY, NOT_SUPPORTED, CAPTURING, DRIVER, SYSTEM, FORKED.
 * Thread safety: any thread; the common case takes no lock. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc,
                                           void **out) GMM_NOEXCEPT;

/**
 * Frees a block in the order of `stream`: what is queued on it may still use the block, and so may what
 * was given to gmm_record_use(). Never waits, unless the memory is just being paused or resumed. NULL is allowed and does nothing.
 *
 * @param memory  exactly an address that gmm_alloc() or gmm_heap_alloc() gave.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INTERIOR_POINTER, INVALID_KIND (imported or pinned memory has its own
 * function), INVALID_HANDLE, DRIVER or SYSTEM (after gmm_record_use(): the streams could not be ordered; the block stays live), FORKED. An error changes nothing.
 * Thread safety: any thread, whichever allocated it; freeing one block from two threads at once is the caller's race.
 * A thread keeps the blocks that it freed for its own next allocations: at most 128 MiB for each heap, and none above 64 MiB; they
 * go back when it ends, by gmm_trim(), when memory is short, and by themselves after gmm_set_decommit(). Of what threads free that other threads
 * allocated, as much again waits for those, once for each heap, and goes back in the same cases.
 * Paused memory may be freed. Since: 0.1
 */
GMM_API gmm_result gmm_free(gmm_context *context, void *memory, gmm_stream stream) GMM_NOEXCEPT;

/**
 * gmm_alloc() for a thread that must not wait, as it draws a frame or holds an interpreter's lock: allocates when the calling thread's cache has a
 * block, without a lock, a wait, a driver call or a callback.
 *
 * GMM_NOT_READY: nothing happened; gmm_alloc() does it, and says what is wrong when the arguments are. That is so for NULL (of desc too), for what asks
 * for an alignment or flags, for a stream that may be in graph capture, while a trace is recorded, and in a child after fork().
 * The thread's message stays as it is.
 * Errors: none. Thread safety: any thread. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_alloc_cached(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc,
                                                  void **out) GMM_NOEXCEPT;

/**
 * gmm_free() for a thread that must not wait: when the calling thread's cache takes the block. GMM_NOT_READY: nothing happened, and gmm_free() does it or
 * says what is wrong: see gmm_alloc_cached(). Errors: none. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_free_cached(gmm_context *context, void *memory, gmm_stream stream) GMM_NOEXCEPT;

/** State of a block. */
typedef uint32_t gmm_state;
enum {
  GMM_STATE_UNKNOWN = 0,  /**< not memory of this context */
  GMM_STATE_ACTIVE = 1,   /**< usable */
  GMM_STATE_PAUSED = 2,   /**< the address is kept, the memory is gone until gmm_resume() */
  GMM_STATE_FREE = 3,     /**< inside memory that gmm holds, in no live block */
  GMM_STATE_IMPORTED = 4, /**< another process's memory, from gmm_ipc_import() */
  GMM_STATE_PINNED = 5,   /**< the caller's own memory, from gmm_pin() */
  GMM_STATE_PARTLY_PAUSED =
      6,                /**< of a block over several pieces of memory, or of a tag: some of it is usable, some paused */
  GMM_STATE_REVOKED = 7 /**< imported, but the exporter has taken it back (::GMM_PAUSE_FORCE): close it */
};

/** Who can use an address, in SYCL's words. */
typedef uint32_t gmm_usm;
enum { GMM_USM_UNKNOWN = 0, GMM_USM_DEVICE = 1, GMM_USM_HOST = 2, GMM_USM_SHARED = 3 };

/** Ways to share a block with another process, as bits. */
enum {
  GMM_IPC_ROUTE_LEGACY = 1u << 0, /**< the driver's 64-byte handle: gmm_ipc_export_legacy() */
  GMM_IPC_ROUTE_FD = 1u << 1,     /**< a file descriptor: gmm_ipc_export_fd() */
  GMM_IPC_ROUTE_FABRIC = 1u << 2, /**< the driver has fabric handles for it; gmm makes none yet */
  GMM_IPC_ROUTE_DMA_BUF = 1u << 3 /**< a Linux dma-buf: gmm_ipc_export_fd() with ::GMM_FD_DMA_BUF */
};

typedef struct gmm_pointer_info {
  uint32_t struct_size;
  gmm_kind kind;
  void *base;             /**< start of the block */
  uint64_t size;          /**< bytes asked for */
  uint64_t reserved_size; /**< bytes the block takes, rounding included */
  gmm_device device;      /**< GMM_DEVICE_HOST for foreign host memory */
  gmm_tag tag;            /**< 0 for memory that gmm did not allocate */
  gmm_state state;
  gmm_usm usm;
  uint32_t ipc_routes;      /**< GMM_IPC_ROUTE_* bits */
  uint32_t flags;           /**< GMM_POINTER_* bits */
  void *allocation_base;    /**< start of the driver's allocation that the block lies in */
  uint64_t allocation_size; /**< bytes */
  void *device_pointer;     /**< the address devices use for `address`; the same but for some pinned memory */
  uint64_t generation;      /**< counts the pauses of the memory: contents of another generation may be gone */
} gmm_pointer_info;

enum {
  GMM_POINTER_HOST_ACCESSIBLE = 1u << 0, /**< the CPU may read and write it through the same address */
  GMM_POINTER_DEVICE_ACCESSIBLE = 1u << 1,
  GMM_POINTER_PEER_GONE =
      1u << 2 /**< imported; the exporter ended or ended its context, and nobody keeps count any more */
};

/**
 * Tells what an address is. Never fails for an address: for foreign memory the state is UNKNOWN, and kind, device and USM type are
 * what the driver says. O(1), without a lock; foreign addresses cost a driver call.
 *
 * @param address  any address, also inside a block or foreign.
 * @param[out] out  set out->struct_size first.
 * Errors: NULL_ARGUMENT (out), INVALID_DESCRIPTOR, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_query(gmm_context *context, const void *address, gmm_pointer_info *out) GMM_NOEXCEPT;

typedef struct gmm_heap_desc {
  uint32_t struct_size;
  gmm_kind kind;
  gmm_device device;
  gmm_tag tag;             /**< CURRENT: the thread's current tag at creation, kept for good */
  uint64_t minimum_extent; /**< bytes: the least to ask the driver for at once; 0: grows from 2 MiB with the heap */
  uint64_t limit;          /**< bytes the heap may hold from the driver; 0: none */
  uint32_t peer_devices;   /**< VMM: bit d lets device d use the memory too */
  uint32_t flags;          /**< must be 0 */
} gmm_heap_desc;

/**
 * Makes a heap of its own: blocks from it share no extent with others. The fastest way to allocate, as
 * kind, device and tag are settled once.
 * @param[out] out  give it back with gmm_heap_destroy().
 * Errors: as gmm_alloc(). Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_heap_create(gmm_context *context, const gmm_heap_desc *desc,
                                                 gmm_heap **out) GMM_NOEXCEPT;

/** Allocates from a heap: see gmm_alloc(). Since: 0.1 */
GMM_NODISCARD GMM_API gmm_result gmm_heap_alloc(gmm_heap *heap, uint64_t size, gmm_stream stream,
                                                void **out) GMM_NOEXCEPT;

/**
 * Ends a heap and gives its memory back to the driver after the work that may use it. Refused with BUSY while blocks
 * are live. No other thread may use the heap then. NULL is allowed.
 * Errors: BUSY, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_heap_destroy(gmm_heap *heap) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
