/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file residency.h
 * Where the pages of memory live: hints, prefetch and moves.
 * The names follow cuMemAdvise and cuMemPrefetchAsync; gmm_move() is PyTorch RFC-0023's `.to(device)`.
 */
#ifndef GMM_RESIDENCY_H
#define GMM_RESIDENCY_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

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
 * Gives a hint about managed memory.
 * @param memory, size  a range inside one block; a size of 0 means from `memory` to the end of the block.
 * @param location  a device, or ::GMM_DEVICE_HOST; not looked at by the read-mostly advices.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_SIZE, INVALID_KIND (not MANAGED), INVALID_DEVICE, INVALID_VALUE (advice),
 * NOT_SUPPORTED, DRIVER, FORKED. Stream behaviour: immediate. Since: 0.1
 */
GMM_API gmm_result gmm_advise(gmm_context *context, void *memory, uint64_t size, gmm_advice advice,
                              gmm_device location) GMM_NOEXCEPT;

/**
 * Queues the migration of managed memory to a location.
 * Errors: as gmm_advise(), INVALID_HANDLE (stream). Stream behaviour: in the stream's order; does not block. Since: 0.1
 */
GMM_API gmm_result gmm_prefetch(gmm_context *context, void *memory, uint64_t size, gmm_device location,
                                gmm_stream stream) GMM_NOEXCEPT;

enum { GMM_MOVE_NON_BLOCKING = 1u << 0 /**< do not wait when moving to the host */ };

typedef struct gmm_move_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_MOVE_* */
  gmm_stream stream;
} gmm_move_desc;

/**
 * Moves a block to a location; its address stays.
 * MANAGED: the preferred location is set, the location may access it, a prefetch is queued; a move to the host waits for it unless
 * NON_BLOCKING. VMM: the contents are copied to new memory at the location and mapped at the old address (the
 * whole extent when it is the block's own: allocate with ::GMM_ALLOC_DEDICATED, else BUSY when others share it); this waits for
 * the device. HOST and DEVICE memory cannot move: INVALID_KIND.
 * A failure leaves the block where it was, with its contents.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_KIND, INVALID_DEVICE, INVALID_FLAGS, INVALID_DESCRIPTOR, PAUSED, BUSY, CAPTURING,
 * OUT_OF_MEMORY, NOT_SUPPORTED, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_move(gmm_context *context, void *memory, gmm_device location,
                            const gmm_move_desc *desc) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
