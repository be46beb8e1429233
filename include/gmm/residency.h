/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file residency.h
 * The location of pages: hints, prefetch and moves.
 *
 * The names follow cuMemAdvise and cuMemPrefetchAsync. gmm_move() is `.to(device)` of PyTorch's RFC-0023.
 */
#ifndef GMM_RESIDENCY_H
#define GMM_RESIDENCY_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A hint of gmm_advise(). */
typedef uint32_t gmm_advice;
enum {
  GMM_ADVISE_SET_READ_MOSTLY = 1,
  GMM_ADVISE_UNSET_READ_MOSTLY = 2,
  GMM_ADVISE_SET_PREFERRED_LOCATION = 3,
  GMM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  GMM_ADVISE_SET_ACCESSED_BY = 5,
  GMM_ADVISE_UNSET_ACCESSED_BY = 6
};

/**
 * Gives the driver a hint about managed memory.
 *
 * @param memory  any address inside a block.
 * @param size  bytes; 0: from `memory` to the end of the block.
 * @param location  a device or ::GMM_DEVICE_HOST; the read-mostly advices ignore it.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_SIZE (the range reaches past the block), INVALID_KIND (not MANAGED),
 * INVALID_DEVICE, INVALID_VALUE (advice), NOT_SUPPORTED, DRIVER, FORKED.
 * Streams: the hint takes effect at once, in no stream's order.
 */
GMM_API gmm_result gmm_advise(gmm_context *context, void *memory, uint64_t size, gmm_advice advice,
                              gmm_device location) GMM_NOEXCEPT;

/**
 * Queues the migration of managed memory to a location.
 *
 * @param memory  any address inside a block.
 * @param size  bytes; 0: from `memory` to the end of the block.
 * @param location  a device or ::GMM_DEVICE_HOST.
 * Errors: as gmm_advise(), INVALID_HANDLE (stream).
 * Streams: the migration runs in the order of `stream`; the caller does not wait.
 */
GMM_API gmm_result gmm_prefetch(gmm_context *context, void *memory, uint64_t size, gmm_device location,
                                gmm_stream stream) GMM_NOEXCEPT;

enum { GMM_MOVE_NON_BLOCKING = 1u << 0 /**< a move to the host does not wait for its end */ };

/** The options of gmm_move(). */
typedef struct gmm_move_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_MOVE_* */
  gmm_stream stream;
} gmm_move_desc;

/**
 * Moves a block to a location without changing its address.
 *
 * The location is a device, ::GMM_DEVICE_HOST, or for VMM memory also a NUMA node of the host, ::GMM_DEVICE_NUMA(n).
 * The last needs ::GMM_DEVICE_CAN_HOST_NUMA of the block's device.
 *
 * MANAGED memory: gmm sets the preferred location, lets the location access the block, and queues a prefetch. VMM
 * memory: gmm copies the contents to new memory at the location and maps it at the old address. Whole extents move, so
 * the block must have its extent alone: allocate it with ::GMM_ALLOC_DEDICATED. A failure leaves the block where it
 * was, with its contents.
 *
 * @param memory  any address inside a block.
 * @param desc  NULL: no flags, the default stream.
 * Results: UNCHANGED (VMM memory that is at the location already).
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND (HOST or DEVICE memory), INVALID_DEVICE, INVALID_FLAGS,
 * INVALID_DESCRIPTOR, PAUSED, BUSY (VMM memory that has importers, or whose extent other blocks share, or a watcher of
 * gmm_watch() refuses), CAPTURING, OUT_OF_MEMORY, NOT_SUPPORTED, DRIVER, FORKED.
 * Streams: MANAGED memory moves in the order of desc->stream, and the call waits for a move to the host unless
 * ::GMM_MOVE_NON_BLOCKING is set. For VMM memory the call waits for the device.
 */
GMM_API gmm_result gmm_move(gmm_context *context, void *memory, gmm_device location,
                            const gmm_move_desc *desc) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
