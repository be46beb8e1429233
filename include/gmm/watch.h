/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file watch.h
 * Watchers: gmm calls the program before memory loses its pages, when its contents are back, and when a budget shrinks.
 *
 * A cache of registrations (NCCL, UCX, NVSHMEM, a library of handles) knows memory by its address. gmm_pause(),
 * gmm_move() and gmm_compact() with ::GMM_COMPACT_LIVE keep the address and change the pages. So such a cache watches
 * the memory: it lets go of the pages in time and takes the new ones. A key of address, size and generation of
 * gmm_query() tells old pages from new ones.
 */
#ifndef GMM_WATCH_H
#define GMM_WATCH_H

#include <gmm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The events of a watcher. The bits of gmm_watch_desc.events; a call has one of them. */
enum {
  /**
   * The memory is about to lose its pages. Nothing has happened yet, and work may still use it.
   *
   * The answer 0 agrees. Any other answer ends the operation with BUSY, and everything is as before.
   */
  GMM_WATCH_PREPARE = 1u << 0,
  /**
   * The devices are idle and the pages go after the answer, whose value does not matter.
   *
   * The contents are still there. Work that the callback queues is waited for.
   */
  GMM_WATCH_LOSING = 1u << 1,
  /** The memory has pages again, with the contents that its tag keeps. Its generation may differ. */
  GMM_WATCH_RESTORED = 1u << 2,
  /**
   * The operation has ended without effect, and `cause` tells why.
   *
   * After PREPARE or LOSING the memory is active with its contents. After a resume it is still paused.
   */
  GMM_WATCH_FAILED = 1u << 3,
  /**
   * gmm_device_info.budget_bytes of the device has fallen below gmm_watch_desc.budget_bytes.
   *
   * It comes once for each fall, also if the budget is below already at gmm_watch(). gmm looks five times a second.
   */
  GMM_WATCH_BUDGET = 1u << 4
};

/** An event, as a watcher's callback receives it. */
typedef struct gmm_watch_info {
  uint32_t struct_size;  /**< the library's */
  uint32_t event;        /**< GMM_WATCH_*, one of them */
  gmm_tag tag;           /**< of the memory; 0 for BUDGET */
  gmm_device device;     /**< of the watched range; else gmm_watch_desc.device */
  void *address;         /**< the watched range; NULL for a tag */
  uint64_t size;         /**< bytes of the watched range; 0 for a tag */
  uint64_t generation;   /**< of the watched range, as in gmm_query(); 0 for a tag */
  uint64_t budget_bytes; /**< for BUDGET: the budget now; else 0 */
  gmm_result cause;      /**< for FAILED: the operation's result; else 0 */
  uint32_t reserved;     /**< 0 */
} gmm_watch_info;

/**
 * Receives an event. The info is valid until the function returns.
 *
 * The operation calls it on its own thread, which is that of gmm_pause() for example, or of a ticket. So it must not
 * block: nothing ends an operation whose callback does not return. Events of memory reach a watcher one at a time.
 * BUDGET comes on a thread of gmm, perhaps at the same time. The function may call gmm, with these exceptions, which
 * are BUSY:
 * - allocations: gmm_alloc(), gmm_heap_alloc(), gmm_heap_reserve();
 * - gmm_watcher_destroy(), gmm_context_release() and gmm_ticket_destroy();
 * - outside of BUDGET: gmm_pause(), gmm_resume(), gmm_resume_range(), gmm_move(), gmm_compact(), gmm_reset(),
 *   gmm_backup_discard(), gmm_heap_destroy(), gmm_tag_destroy() and gmm_tag_configure().
 */
typedef int32_t (*gmm_watch_fn)(void *user, const gmm_watch_info *info);

/** A function that receives events, with the pointer that it gets. */
typedef struct gmm_watch_callback {
  gmm_watch_fn fn;
  void *user;
} gmm_watch_callback;

/** Describes a watch for gmm_watch(). */
typedef struct gmm_watch_desc {
  uint32_t struct_size;
  uint32_t events;       /**< GMM_WATCH_*, at least one */
  gmm_tag tag;           /**< VMM memory of this tag, now and later, if size is 0 */
  gmm_device device;     /**< for BUDGET */
  const void *address;   /**< start of a range in one VMM block, if size is not 0 */
  uint64_t size;         /**< bytes of the range; 0: the tag */
  uint64_t budget_bytes; /**< for BUDGET, at least 1; else 0 */
  int32_t order;         /**< ascending for PREPARE and LOSING, else descending; equal ones by age */
  uint32_t flags;        /**< must be 0 */
  const char *name;      /**< for messages: 1 to 63 bytes of text in UTF-8, copied; NULL: none */
  gmm_watch_callback callback;
} gmm_watch_desc;

/** A watch that gmm_watch() began. */
typedef struct gmm_watcher gmm_watcher;

/**
 * Begins to call a function for events of the memory of a tag or range, or of a device's budget.
 *
 * These operations call the watchers of memory that they change:
 *
 * | operation | before | at the end | after a failure |
 * | --- | --- | --- | --- |
 * | gmm_pause() | PREPARE, then LOSING | | FAILED |
 * | gmm_resume(), gmm_resume_range() | | RESTORED | FAILED |
 * | gmm_move() of VMM memory | PREPARE, then LOSING | RESTORED | FAILED |
 * | gmm_compact() with GMM_COMPACT_LIVE | PREPARE, then LOSING | RESTORED | FAILED |
 *
 * So do their asynchronous forms. gmm_compact() calls all watchers of its scope, as it chooses the memory to move
 * later.
 *
 * - All PREPARE come before the first LOSING. An answer other than 0 to PREPARE ends the operation with BUSY. The
 *   message names the watcher, and everything is as before.
 * - FAILED goes to watchers whose PREPARE was due before the failure, without the watcher that refused.
 * - A callback for BUDGET may pause memory that its own watcher watches. The watcher then gets that event during its
 *   call.
 * - An operation that changes nothing calls no watcher, except for FAILED with the cause UNCHANGED after PREPARE.
 *
 * A watch of a range ends neither with its block nor with its tag. A later block at that address is watched as well.
 *
 * @param desc  must not be NULL.
 * @param[out] out  the watcher.
 * Errors: NULL_ARGUMENT (desc, the callback, the address of a range), INVALID_FLAGS (events, flags),
 * INVALID_DESCRIPTOR, INVALID_TAG, INVALID_DEVICE, INVALID_SIZE, INVALID_VALUE (budget or name), UNKNOWN_POINTER,
 * ALREADY_FREED, INVALID_KIND (a range of another kind than VMM), OUT_OF_HOST_MEMORY, SYSTEM (no thread for BUDGET),
 * FORKED.
 * Threads: a context with watchers of BUDGET has one thread for all of them.
 * Ownership: gmm copies desc. `user` must live until gmm_watcher_destroy() or the end of the context, which ends the
 * watchers that are left. The caller destroys the watcher.
 */
GMM_API gmm_result gmm_watch(gmm_context *context, const gmm_watch_desc *desc, gmm_watcher **out) GMM_NOEXCEPT;

/**
 * Ends a watch. The call waits for the callback if it runs; afterwards gmm does not call it again.
 *
 * An operation whose further calls of this watcher are due goes on, as if it had answered 0.
 *
 * @param watcher  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, BUSY (the caller is a callback of a watcher), FORKED.
 */
GMM_API gmm_result gmm_watcher_destroy(gmm_watcher *watcher) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
