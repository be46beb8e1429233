/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pin.h
 * Page-locking of the caller's own memory.
 */
#ifndef GMM_PIN_H
#define GMM_PIN_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The options of gmm_pin(). */
typedef struct gmm_pin_desc {
  uint32_t struct_size;
  uint32_t flags;    /**< GMM_PIN_* */
  gmm_device device; /**< the device whose address gmm_pin() returns */
  uint32_t reserved;
} gmm_pin_desc;

enum {
  GMM_PIN_READ_ONLY = 1u << 0 /**< devices only read the memory; NOT_SUPPORTED where the device lacks that */
};

/**
 * Page-locks the caller's memory and maps it for every device.
 *
 * A pin of the same range, or of a part of it, nests. gmm works on whole pages inside, so two ranges that share a page
 * but no byte may both be pinned.
 *
 * @param memory  an address of any alignment.
 * @param size  bytes, at least 1.
 * @param desc  NULL: no flags, device 0.
 * @param[out] device_pointer  the address by which the device reaches the memory; may be NULL.
 * Errors: NULL_ARGUMENT, INVALID_SIZE, SIZE_OVERFLOW, INVALID_DEVICE, INVALID_FLAGS, INVALID_DESCRIPTOR, INVALID_KIND
 * (gmm or the driver allocated the memory), OVERLAP (the range overlaps a pinned one without lying inside it),
 * NOT_SUPPORTED, SYSTEM (the memory is not mapped, or RLIMIT_MEMLOCK is too small), DRIVER, FORKED.
 * Streams: the call neither queues work nor waits.
 * Ownership: the memory stays the caller's. Each pin needs its own gmm_unpin() before the caller frees the memory.
 */
GMM_API gmm_result gmm_pin(gmm_context *context, void *memory, uint64_t size, const gmm_pin_desc *desc,
                           void **device_pointer) GMM_NOEXCEPT;

/**
 * Takes back one gmm_pin() of an address.
 *
 * @param memory  exactly an address that was given to gmm_pin().
 * Errors: NULL_ARGUMENT, NOT_PINNED, DRIVER, SYSTEM, FORKED.
 * Streams: no work on any stream may still use the memory.
 */
GMM_API gmm_result gmm_unpin(gmm_context *context, void *memory) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
