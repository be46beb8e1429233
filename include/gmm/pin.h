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

typedef struct gmm_pin_desc {
  uint32_t struct_size;
  uint32_t flags;    /**< GMM_PIN_* */
  gmm_device device; /**< the device whose address is asked for */
  uint32_t reserved;
} gmm_pin_desc;

enum {
  GMM_PIN_READ_ONLY = 1u << 0 /**< devices will only read it; GMM_ERROR_NOT_SUPPORTED where the device lacks that */
};

/**
 * Page-locks `size` bytes of the caller's memory and maps them for every device. The memory stays the caller's: unpin it before it
 * is freed. Pinning the same range, or a part of a pinned range, again nests: each pin needs its own gmm_unpin().
 * A range that overlaps a pinned one without lying inside it is refused with OVERLAP.
 * gmm works on whole pages inside, so two ranges that share a page but no byte may both be pinned.
 *
 * @param memory  any alignment.
 * @param[out] device_pointer  the address by which the device reaches the memory; may be NULL when not wanted.
 * Errors: NULL_ARGUMENT, INVALID_SIZE, SIZE_OVERFLOW, INVALID_DEVICE, INVALID_FLAGS, INVALID_DESCRIPTOR, INVALID_KIND (memory that gmm or the driver allocated is
 * not the caller's), OVERLAP, NOT_SUPPORTED, SYSTEM (not mapped, or over RLIMIT_MEMLOCK), DRIVER, FORKED. Stream behaviour: none. Since: 0.1
 */
GMM_API gmm_result gmm_pin(gmm_context *context, void *memory, uint64_t size, const gmm_pin_desc *desc,
                           void **device_pointer) GMM_NOEXCEPT;

/**
 * Takes back one gmm_pin() of exactly this address. No work on any stream may still use the memory.
 * Errors: NULL_ARGUMENT, NOT_PINNED, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_unpin(gmm_context *context, void *memory) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
