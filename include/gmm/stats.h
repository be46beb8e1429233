/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats.h
 * Limits, counters, snapshots, traces and giving memory back.
 */
#ifndef GMM_STATS_H
#define GMM_STATS_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a limit or a count is about: one device or all, one tag or all, one kind or all. */
typedef struct gmm_scope {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_SCOPE_*: which fields below count; 0: everything */
  gmm_device device;
  gmm_tag tag;
  gmm_kind kind;
  uint32_t reserved;
} gmm_scope;

enum { GMM_SCOPE_DEVICE = 1u << 0, GMM_SCOPE_TAG = 1u << 1, GMM_SCOPE_KIND = 1u << 2 };

#define GMM_NO_LIMIT UINT64_MAX

/**
 * Limits how many bytes a device, a tag, or a tag on a device may hold from the driver (all kinds together). A limit below what
 * is held now stops growth only. ::GMM_NO_LIMIT takes a limit away.
 * @param scope  GMM_SCOPE_DEVICE, GMM_SCOPE_TAG or both; a NULL scope or GMM_SCOPE_KIND is INVALID_FLAGS.
 * Errors: INVALID_FLAGS, INVALID_DESCRIPTOR, INVALID_DEVICE, INVALID_TAG, OUT_OF_HOST_MEMORY, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_set_limit(gmm_context *context, const gmm_scope *scope, uint64_t bytes) GMM_NOEXCEPT;

/** What an out-of-memory handler is told. */
typedef struct gmm_oom_info {
  uint32_t struct_size;
  gmm_device device;
  gmm_kind kind;
  gmm_tag tag;
  uint64_t requested; /**< bytes of the allocation */
  uint64_t reserved;  /**< bytes the context holds on the device */
  uint32_t attempt;   /**< 1 at the first call for this allocation */
  gmm_result cause;   /**< OUT_OF_MEMORY, OUT_OF_HOST_MEMORY or LIMIT_EXCEEDED */
} gmm_oom_info;

/**
 * Returns 1 to try again, 0 to let the allocation fail. Called on the allocating thread without a lock held: it may
 * free, pause and trim through gmm. It must not allocate from the same context.
 */
typedef int32_t (*gmm_oom_fn)(void *user, const gmm_oom_info *info);

/** Sets the handler that is asked after trimming did not help; NULL for none. At most 100 attempts an allocation. Errors: FORKED. Since: 0.1 */
GMM_API gmm_result gmm_set_oom_handler(gmm_context *context, gmm_oom_fn fn, void *user) GMM_NOEXCEPT;

typedef struct gmm_statistics {
  uint32_t struct_size;
  uint32_t live_tags;  /**< tags with memory in the scope */
  uint64_t live_bytes; /**< asked for and not freed */
  uint64_t live_blocks;
  uint64_t peak_live_bytes; /**< highest live_bytes seen when memory was taken from the driver or read here */
  uint64_t cached_bytes;    /**< free but held, ready to be given out */
  uint64_t reserved_bytes;  /**< held from the driver */
  uint64_t peak_reserved_bytes;
  uint64_t paused_bytes;   /**< addresses kept, pages gone */
  uint64_t pinned_bytes;   /**< the caller's own memory; whole context only */
  uint64_t imported_bytes; /**< other processes' memory; whole context only */
  uint64_t allocations;    /**< calls that succeeded */
  uint64_t frees;
  uint64_t failures;      /**< allocations that failed for want of memory */
  uint64_t extents;       /**< driver allocations held */
  uint64_t backend_calls; /**< calls into the driver or system that allocate, map, unmap or free; whole context only */
} gmm_statistics;

/**
 * Adds up the counters. They are kept a thread and summed here, so a call costs microseconds; an alloc that runs meanwhile may or may not be in.
 * @param scope NULL: everything.  Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_DEVICE, INVALID_TAG, INVALID_KIND, INVALID_FLAGS, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_stats(gmm_context *context, const gmm_scope *scope, gmm_statistics *out) GMM_NOEXCEPT;

/** Receives text piece by piece; returns 0 to go on, anything else to stop. Must not call gmm on the same context. */
typedef int32_t (*gmm_write_fn)(void *user, const char *text, uint64_t size);

/**
 * Writes a JSON object that describes every heap, extent and live block. Format: "gmm-snapshot" with "version": 1.
 * Errors: NULL_ARGUMENT, IO (the writer stopped), FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_snapshot(gmm_context *context, gmm_write_fn write, void *user) GMM_NOEXCEPT;

/**
 * Starts to record into a file every alloc (address, size, alignment, stream, heap), free and gmm_record_use(), with thread and
 * time, and every pause, resume, trim, reset, heap and end of a thread. The environment's GMM_TRACE=file does it from the context's creation
 * to its end; a `%p` in the name becomes the process id.
 *
 * Format: binary, little-endian, "gmmtrace" and a version (1) at its start; lib/engine/trace/FORMAT.md describes it. `gmm replay` runs it,
 * `gmm trace` prints it as text. Each thread collects 64 KiB before it writes them, so a program that is killed loses the last events of each
 * thread, and what it wrote can be read. A child of fork() writes nothing. What cannot be written is counted, and gmm_trace_end() says how much
 * that is. The program's own SIGXFSZ and SIGPIPE are not raised for it.
 * Errors: NULL_ARGUMENT, BUSY (one is running, or another trace is writing the file), IO, OUT_OF_HOST_MEMORY, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_trace_begin(gmm_context *context, const char *path) GMM_NOEXCEPT;

/**
 * Ends the trace; all that any thread recorded is in the file when it returns. Waits for frees that other threads are inside of.
 * Errors: UNBALANCED, IO (events are missing in the file; the message says how many and why), FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_trace_end(gmm_context *context) GMM_NOEXCEPT;

/**
 * Gives free memory back to the driver: thread caches (idle threads' too), then whole free extents, after the work that may still
 * use them; and, for everything, the page-locked host memory of backups that holds no contents.
 * @param scope NULL: everything. @param[out] bytes  bytes that went back; may be NULL.
 * Errors: as gmm_stats(); DRIVER. Nothing happens inside gmm_defer_begin(): GMM_UNCHANGED, done at its end. Since: 0.1
 */
GMM_API gmm_result gmm_trim(gmm_context *context, const gmm_scope *scope, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Frees everything that was allocated from the context, live blocks too, after waiting for the devices: addresses given out before are dead. Heaps, tags, limits and
 * pins stay; imports stay. Refused with BUSY while importers hold memory. No other thread may be inside a call on the context.
 * Errors: BUSY, CAPTURING, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_reset(gmm_context *context) GMM_NOEXCEPT;

/**
 * Until the matching gmm_defer_end() nothing expensive is done on behalf of a free: no trim, no memory back to the driver
 * (unless an allocation would fail otherwise). Nests; counts for the whole context. Errors: FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_defer_begin(gmm_context *context) GMM_NOEXCEPT;

/** Ends one gmm_defer_begin() and, at the last, does what was put off. Errors: UNBALANCED, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_defer_end(gmm_context *context) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
