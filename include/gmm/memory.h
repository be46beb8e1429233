/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * Allocation, free, query and heaps.
 *
 * Functions take plain pointers, interior ones too. gmm_free() takes the start of a block only.
 */
#ifndef GMM_MEMORY_H
#define GMM_MEMORY_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  /**
   * The block gets a driver allocation of its own and starts where that allocation starts.
   *
   * Use it for driver calls that look at the whole allocation: legacy IPC handles that are passed on without an offset,
   * NCCL registration. Such an allocation is slower, and its size is rounded up to the granularity.
   */
  GMM_ALLOC_DEDICATED = 1u << 0,
  GMM_ALLOC_ZERO = 1u << 1, /**< the bytes read as zero, in the order of the stream */
  /**
   * Memory for network libraries: NCCL, UCX, NVSHMEM, MPI. The kind is VMM, also where the descriptor says UNSPECIFIED.
   *
   * The block is one driver allocation at the driver's recommended granularity. Every device that can reach the
   * memory has access. On CUDA the allocation is capable of GPUDirect RDMA, and has a POSIX descriptor and a fabric
   * handle, each as far as the device has it: ::GMM_DEVICE_CAN_RDMA, ::GMM_DEVICE_CAN_EXPORT_FD and
   * ::GMM_DEVICE_CAN_FABRIC. A pause and a move within the device keep all of that.
   *
   * Register `allocation_base` and `allocation_size` of gmm_query(). Before gmm_pause() or gmm_move() the registration
   * must end, as the pages change: gmm_watch() calls the program in time.
   */
  GMM_ALLOC_COMM = 1u << 2,
  /**
   * The block is born paused: it has addresses, and no memory yet. The kind is VMM, also where the descriptor says
   * UNSPECIFIED.
   *
   * The block may be larger than the device. gmm_resume_range() takes memory for a part of it, and gmm_pause_range()
   * gives it back; both take lists of parts in a gmm_pause_desc. A part is whole pages of 2 MiB. Pages taken at once
   * become driver allocations of at most 64 MiB, which go back whole. gmm_query() tells them: of such a block
   * `allocation_base` and `allocation_size` are those at the address, or the page where it has none.
   *
   * Only what was taken counts: in limits, and in live, reserved and paused bytes. gmm_pause() and gmm_resume() of the
   * tag take that away and bring it back, and leave the rest as it is. ::GMM_ALLOC_ZERO and ::GMM_ALLOC_COMM exclude
   * it. Memory of a block that was freed goes back as that of ::GMM_ALLOC_DEDICATED.
   */
  GMM_ALLOC_PAUSED = 1u << 3
};

/** The options of gmm_alloc(). */
typedef struct gmm_alloc_desc {
  uint32_t struct_size;
  gmm_kind kind;      /**< UNSPECIFIED: DEVICE; with ::GMM_ALLOC_COMM or _PAUSED VMM */
  gmm_device device;  /**< for HOST and MANAGED memory: the device whose usage counts it */
  gmm_tag tag;        /**< CURRENT: the thread's current tag */
  gmm_stream stream;  /**< the stream that uses the block first */
  uint64_t alignment; /**< bytes, a power of two up to 2 MiB; 0: 256 */
  uint32_t flags;     /**< GMM_ALLOC_* */
  uint32_t reserved;
} gmm_alloc_desc;

/**
 * Allocates a block of `size` bytes.
 *
 * The same stream may get a freed block again at once. When memory runs out, gmm trims, asks the handler of
 * gmm_context_set_oom_handler(), and then fails. The message names the tags that hold the most, the memory that is free
 * in pieces, and the pause that gives the most. At most once a second the log has all of it as warnings.
 *
 * @param size  bytes, at least 1. gmm rounds it up to a size class, which adds at most 12.5%, or to a multiple of 256.
 * @param desc  NULL: kind DEVICE, device 0, the current tag, the default stream.
 * @param[out] out  the address, aligned to 256 bytes or to desc->alignment.
 * Errors: NULL_ARGUMENT, INVALID_SIZE (zero), SIZE_OVERFLOW, INVALID_KIND, INVALID_DEVICE, INVALID_TAG,
 * INVALID_ALIGNMENT, INVALID_FLAGS, INVALID_DESCRIPTOR, LIMIT_EXCEEDED, OUT_OF_MEMORY, OUT_OF_HOST_MEMORY,
 * NOT_SUPPORTED, CAPTURING (the stream's capture has failed), DRIVER, SYSTEM, FORKED. ::GMM_ALLOC_COMM and
 * ::GMM_ALLOC_PAUSED are INVALID_KIND for another kind than VMM, and NOT_SUPPORTED where the device has no VMM memory.
 * Streams: the block is usable at once in the order of desc->stream. The host and other streams use it after work that
 * orders them behind that stream. A stream that is captured gets memory of the graph's own (stream.h). The call never
 * waits for streams, with two exceptions: a VMM heap whose free memory is still in use by queued work waits up to 0.5 s
 * before it grows past 8/7 of its peak, and an allocation waits for all streams when memory has run out.
 * Threads: any; the common case takes no lock.
 * Ownership: the caller frees the block with gmm_free().
 */
GMM_NODISCARD GMM_API gmm_result gmm_alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc,
                                           void **out) GMM_NOEXCEPT;

/**
 * Frees a block in the order of a stream.
 *
 * A thread keeps the blocks that it freed for its own next allocations: at most 128 MiB for each heap, and no block
 * above 64 MiB. Blocks that one thread allocated and another freed wait for the first: at most 128 MiB for each heap.
 * These blocks return to their heap when the thread ends, by gmm_trim(), when memory is short, and after the time of
 * gmm_context_set_decommit(). Those of idle threads also return before the heap grows, if these threads hold more than
 * 64 MiB of it together.
 *
 * @param memory  exactly an address from gmm_alloc() or gmm_heap_alloc(), paused or not. NULL is allowed and does
 * nothing.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INTERIOR_POINTER, INVALID_KIND (imported and pinned memory has functions of
 * its own), DRIVER or SYSTEM (after gmm_record_use(): the streams could not be ordered, so the block stays live),
 * CORRUPT (GMM_DEBUG=redzone: the program wrote past the block, which stays live), FORKED.
 * Streams: work that is queued on `stream`, or on a stream of gmm_record_use(), may still use the block. The call waits
 * for no stream. It waits for a pause or resume of the same memory. These streams must live, with one exception: a
 * free may name a stream that gmm_stream_destroy() ended, for example from a garbage collector. The memory of the block
 * is then not used again before gmm_trim(), or a lack of memory, waits for the device. gmm knows the last 256 such
 * streams. It does not know when the program itself destroys a stream: CUDA's driver and SYCL's runtime crash on that.
 * Threads: any, whichever allocated the block. Two threads that free one block at once are a race of the program.
 */
GMM_API gmm_result gmm_free(gmm_context *context, void *memory, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Allocates a block only if that needs no wait.
 *
 * The call waits for nothing, and calls neither the driver nor a callback. It is for a thread that must not wait, for
 * example while it draws a frame or holds an interpreter's lock. It takes a block of the thread's cache, else memory of
 * the heap that is free for the stream, if no other thread has the heap's lock at that moment.
 *
 * A thread that never waits is made of three things: gmm_heap_reserve() for its heap, one plain allocation and free at
 * its start, and the try forms from then on. On CUDA it uses the default stream, or a context with
 * GMM_CONTEXT_NO_CAPTURE, as only the driver knows whether another stream is captured.
 *
 * @param desc  as for gmm_alloc().
 * Errors: NOT_READY: the call did nothing, and gmm_alloc() allocates or says what is wrong. Causes: no free memory
 * fits; another thread has the heap's lock; the thread never used the heap; bookkeeping needs host memory; an argument
 * is wrong; desc has an alignment or flags; the stream may be in a graph capture; a trace records, or something checks
 * memory (GMM_DEBUG, valgrind, the address sanitizer); the process is a child after fork(). The thread's message is
 * that of gmm_result_text().
 */
GMM_NODISCARD GMM_API gmm_result gmm_try_alloc(gmm_context *context, uint64_t size, const gmm_alloc_desc *desc,
                                               void **out) GMM_NOEXCEPT;

/**
 * Frees a block only if that needs no wait.
 *
 * The block goes to the thread's cache, else to its heap, if no other thread has the heap's lock at that moment.
 * It waits as little as gmm_try_alloc().
 *
 * @param memory  NULL is allowed and does nothing.
 * Errors: NOT_READY: the call did nothing, and gmm_free() frees the block or says what is wrong.
 */
GMM_NODISCARD GMM_API gmm_result gmm_try_free(gmm_context *context, void *memory, gmm_stream stream) GMM_NOEXCEPT;

/** The state of a block. */
typedef uint32_t gmm_state;
enum {
  GMM_STATE_UNKNOWN = 0,  /**< not memory of this context */
  GMM_STATE_ACTIVE = 1,   /**< usable */
  GMM_STATE_PAUSED = 2,   /**< the address is reserved, and there is no memory behind it until gmm_resume() */
  GMM_STATE_FREE = 3,     /**< inside memory that gmm holds, in no live block */
  GMM_STATE_IMPORTED = 4, /**< another process's memory, from gmm_ipc_import() */
  GMM_STATE_PINNED = 5,   /**< the caller's own memory, from gmm_pin() */
  /** A part is usable and a part is paused: of a block over several driver allocations, or of a tag. */
  GMM_STATE_PARTLY_PAUSED = 6,
  GMM_STATE_REVOKED = 7 /**< imported, and the exporter took it back (::GMM_PAUSE_FORCE); close it */
};

/** The users of an address, in SYCL's words: the device, the host, or both. */
typedef uint32_t gmm_usm;
enum { GMM_USM_UNKNOWN = 0, GMM_USM_DEVICE = 1, GMM_USM_HOST = 2, GMM_USM_SHARED = 3 };

/** Ways to share a block with another process, as bits. */
enum {
  GMM_IPC_ROUTE_LEGACY = 1u << 0, /**< the driver's 64-byte handle: gmm_ipc_export_legacy() */
  GMM_IPC_ROUTE_FD = 1u << 1,     /**< a file descriptor: gmm_ipc_export_fd() */
  /** gmm_ipc_export() makes a handle that another machine of the same NVLink domain imports, too. */
  GMM_IPC_ROUTE_FABRIC = 1u << 2,
  GMM_IPC_ROUTE_DMA_BUF = 1u << 3 /**< a Linux dma-buf: gmm_ipc_export_fd() with ::GMM_FD_DMA_BUF */
};

/** The answer of gmm_query(). */
typedef struct gmm_pointer_info {
  uint32_t struct_size;
  gmm_kind kind;
  void *base;             /**< start of the block */
  uint64_t size;          /**< bytes requested */
  uint64_t reserved_size; /**< bytes that the block takes, rounding included */
  gmm_device device;      /**< GMM_DEVICE_HOST for host memory that gmm does not know */
  gmm_tag tag;            /**< 0 for memory that gmm did not allocate */
  gmm_state state;
  gmm_usm usm;
  uint32_t ipc_routes;      /**< GMM_IPC_ROUTE_* bits, of memory of this kind and device */
  uint32_t flags;           /**< GMM_POINTER_* bits */
  void *allocation_base;    /**< start of the driver's allocation that the block starts in */
  uint64_t allocation_size; /**< bytes */
  /** The address that devices use for `address`. It differs for some pinned memory, and on a strict host backend. */
  void *device_pointer;
  /** Counts the pauses of the memory, neighbours included: contents of another generation may be lost. */
  uint64_t generation;
} gmm_pointer_info;

enum {
  GMM_POINTER_HOST_ACCESSIBLE = 1u << 0,   /**< the CPU may read and write through the same address */
  GMM_POINTER_DEVICE_ACCESSIBLE = 1u << 1, /**< a device may read and write */
  /** The memory is imported, and its exporter ended or released its context. No process counts the importers now. */
  GMM_POINTER_PEER_GONE = 1u << 2,
  GMM_POINTER_COMM = 1u << 3,     /**< a block of ::GMM_ALLOC_COMM, paused or not */
  GMM_POINTER_READ_ONLY = 1u << 4 /**< attached with ::GMM_ATTACH_READ_ONLY */
};

/**
 * Describes an address: its block, kind, device, state and the ways to share it.
 *
 * The call succeeds for every address. For memory that gmm does not know the state is UNKNOWN, and the driver answers
 * kind, device and USM type by one call. Otherwise the call costs O(1) and takes no lock.
 *
 * Errors: NULL_ARGUMENT (out), INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_query(gmm_context *context, const void *address, gmm_pointer_info *out) GMM_NOEXCEPT;

/**
 * Names a block.
 *
 * Snapshots, traces and the report of live blocks at the end of a context show the name. Names need not differ. The
 * free of a block that ever had a name takes a lock, so gmm_try_free() leaves it to gmm_free(). Other blocks cost
 * nothing more.
 *
 * @param memory  any address inside a live block of gmm_alloc() or gmm_heap_alloc().
 * @param name  1 to 63 bytes of UTF-8, which the call copies. It replaces an earlier name; NULL: the block has none.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_VALUE (name), OUT_OF_HOST_MEMORY, FORKED. The block then keeps the
 * name that it had.
 * Ownership: gmm_free() and gmm_reset() forget the name.
 */
GMM_API gmm_result gmm_name(gmm_context *context, const void *memory, const char *name) GMM_NOEXCEPT;

enum {
  /**
   * Every block of the heap lies in one driver allocation, so it has a descriptor: gmm_ipc_export_fd() returns the
   * descriptor, the block's offset and the allocation's size.
   *
   * Blocks of one allocation share a descriptor's memory. An importer maps an allocation once and adds offsets. The
   * heap takes and returns whole allocations, and never moves them. gmm_heap_desc.minimum_extent sets their least size:
   * 64 MiB keeps their number low. Fragmentation costs more memory than in other VMM heaps.
   */
  GMM_HEAP_EXPORTABLE = 1u << 0
};

/** The options of gmm_heap_create(). */
typedef struct gmm_heap_desc {
  uint32_t struct_size;
  gmm_kind kind;
  gmm_device device;
  gmm_tag tag;             /**< CURRENT: the thread's current tag at the creation, for the heap's whole life */
  uint64_t minimum_extent; /**< bytes of the smallest extent; 0: 2 MiB, growing with the heap */
  uint64_t limit;          /**< bytes that the heap may hold from the driver; 0: no limit */
  uint64_t peer_devices;   /**< bit d lets device d use the memory too; DEVICE memory cannot */
  uint32_t flags;          /**< GMM_HEAP_* */
  uint32_t reserved;
} gmm_heap_desc;

/**
 * Creates a heap, whose blocks share no extent with those of other heaps.
 *
 * A heap is the fastest way to allocate, because its kind, device and tag are fixed at the creation.
 *
 * @param desc  NULL: kind DEVICE, device 0, the current tag.
 * Errors: as gmm_alloc(), NOT_SUPPORTED (::GMM_HEAP_EXPORTABLE, and memory of this kind has no descriptor on the
 * device).
 * Ownership: the caller destroys the heap with gmm_heap_destroy().
 */
GMM_NODISCARD GMM_API gmm_result gmm_heap_create(gmm_context *context, const gmm_heap_desc *desc,
                                                 gmm_heap **out) GMM_NOEXCEPT;

/**
 * Allocates a block of `size` bytes from a heap.
 *
 * The rules of gmm_alloc() hold here too. The options are arguments, because six registers cost less than a descriptor.
 *
 * @param alignment  bytes, a power of two up to 2 MiB; 0: 256.
 * @param flags  GMM_ALLOC_*
 * @param stream  the stream that uses the block first.
 * Errors: as gmm_alloc(), INVALID_HANDLE (not a heap, or a destroyed one).
 */
GMM_NODISCARD GMM_API gmm_result gmm_heap_alloc(gmm_heap *heap, uint64_t size, uint64_t alignment, uint32_t flags,
                                                gmm_stream stream, void **out) GMM_NOEXCEPT;

/**
 * Allocates a block from a heap only if that needs no wait.
 *
 * gmm_try_alloc() describes the use in a thread that never waits.
 *
 * Errors: NOT_READY, as gmm_try_alloc(); gmm_heap_alloc() allocates or says what is wrong.
 */
GMM_NODISCARD GMM_API gmm_result gmm_heap_try_alloc(gmm_heap *heap, uint64_t size, uint64_t alignment, uint32_t flags,
                                                    gmm_stream stream, void **out) GMM_NOEXCEPT;

/**
 * Makes a heap hold at least `bytes` bytes from now on, free and live ones together.
 *
 * The memory comes now, and it is touched: the device's pages are mapped, and on the host backend they are in RAM.
 * gmm_trim(), gmm_compact(), gmm_reset() and the time of gmm_context_set_decommit() leave the heap this much. So blocks
 * that fit into it need no driver call. Live blocks count, too, but dedicated ones do not. Blocks beyond it make the
 * heap grow, as without a reserve.
 *
 * Choose 1.5 times the most bytes that are live at once, for the gaps between blocks of many sizes. A later call
 * replaces the number: a larger one takes the rest, a smaller one leaves the memory for the next trim.
 *
 * gmm_pause() takes the reserve, too. After the resume, this function with the same number takes it again.
 *
 * @param bytes  rounded up to 2 MiB; 0 ends the reserve. The memory of a kind other than VMM that one call adds is one
 * driver allocation, and no block lies in two of them.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE (not a heap, or a destroyed one), SIZE_OVERFLOW, LIMIT_EXCEEDED, OUT_OF_MEMORY,
 * OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED. The heap is then as before, and an earlier number holds.
 * Streams: the call waits for all streams only when memory has run out, as gmm_alloc().
 * Threads: calls that need this heap's lock wait during the call.
 */
GMM_API gmm_result gmm_heap_reserve(gmm_heap *heap, uint64_t bytes) GMM_NOEXCEPT;

/**
 * Destroys a heap and returns its memory to the driver.
 *
 * @param heap  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, BUSY (blocks of the heap are live, or a held operation has the heap), CAPTURING, DRIVER,
 * FORKED.
 * Streams: the call waits for the work that may use the heap's memory.
 * Threads: no other thread may use the heap during the call.
 */
GMM_API gmm_result gmm_heap_destroy(gmm_heap *heap) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
