/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h
 * A context binds the library to one backend. Several may live at once; the library has no state
 * outside of them.
 */
#ifndef GMM_CONTEXT_H
#define GMM_CONTEXT_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t gmm_backend;
enum {
  GMM_BACKEND_AUTO = 0, /**< GMM_BACKEND from the environment; else cuda when a driver and a device answer; else host */
  GMM_BACKEND_HOST = 1, /**< ordinary memory of this machine; needs no GPU */
  GMM_BACKEND_CUDA = 2, /**< the CUDA driver, opened at run time */
  GMM_BACKEND_SYCL = 3 /**< SYCL USM by dpctl's C library, opened at run time: GMM_SYCL_LIBRARY, or found by its name */
};

typedef uint32_t gmm_log_level;
enum {
  GMM_LOG_ERROR = 1,   /**< something failed and could not be reported through a result */
  GMM_LOG_WARNING = 2, /**< something works, but not as well as asked */
  GMM_LOG_INFO = 3,    /**< which backend and device were taken */
  GMM_LOG_DEBUG = 4
};

/** Called on the thread that has something to say, without a lock of the library held. `message` lives for the call only. */
typedef struct gmm_log_callback {
  void (*fn)(void *user, gmm_log_level level, const char *message);
  void *user;
} gmm_log_callback;

/**
 * Where the library takes its own bookkeeping from, for programs that count every byte. Both functions or none.
 * `allocate` returns memory aligned to `alignment` (a power of two, at most 64), or NULL. They may be called
 * from any thread, with locks of the library held: they must not call gmm.
 */
typedef struct gmm_host_allocator {
  void *(*allocate)(void *user, uint64_t size, uint64_t alignment);
  void (*deallocate)(void *user, void *memory, uint64_t size);
  void *user;
} gmm_host_allocator;

enum {
  /**
   * The program captures no graph on a stream that it allocates on, or allocates nothing in a capture: gmm need not ask the driver at each
   * allocation on a stream (stream.h). Memory that is allocated in a capture all the same may be given out again while the graph uses it.
   */
  GMM_CONTEXT_NO_CAPTURE = 1u << 0
};

#define GMM_DECOMMIT_DEFAULT 0        /**< what GMM_DECOMMIT_AFTER_MS in the environment says; else never */
#define GMM_DECOMMIT_NEVER UINT64_MAX /**< free memory stays until somebody asks for it */

typedef struct gmm_context_desc {
  uint32_t struct_size;
  gmm_backend backend;
  uint32_t flags; /**< GMM_CONTEXT_* */
  uint32_t reserved;
  gmm_log_callback log;              /**< where messages go; none: warnings and errors to stderr when GMM_LOG is set */
  gmm_host_allocator host_allocator; /**< none: malloc */
  uint64_t host_memory;              /**< host backend: bytes each device pretends to have; 0 = the machine's memory */
  uint32_t host_devices;             /**< host backend: how many devices it shows; 0 = 1, at most 16 */
  uint32_t reserved1;
  uint64_t decommit_after_ms; /**< milliseconds, GMM_DECOMMIT_DEFAULT or GMM_DECOMMIT_NEVER: see gmm_set_decommit() */
} gmm_context_desc;

/**
 * Opens a backend.
 *
 * @param desc  NULL for the defaults.
 * @param[out] out  the context, with one reference; give it back with gmm_context_release().
 * Errors: INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (unknown backend, here or in GMM_BACKEND; no time in
 * GMM_DECOMMIT_AFTER_MS), NO_BACKEND, OUT_OF_HOST_MEMORY, DRIVER, SYSTEM (no thread for decommit_after_ms).
 * Stream behaviour: none. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_context_create(const gmm_context_desc *desc, gmm_context **out) GMM_NOEXCEPT;

/** Adds a reference. Errors: NULL_ARGUMENT, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_context_retain(gmm_context *context) GMM_NOEXCEPT;

/**
 * Drops a reference. The last one waits for the context's streams, gives all its memory back, live blocks included, and ends its
 * threads. No other thread may be inside a call on the context then. NULL is allowed.
 * After fork, in the child, nothing is touched and the result is FORKED.
 * Errors: FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_context_release(gmm_context *context) GMM_NOEXCEPT;

typedef struct gmm_context_info {
  uint32_t struct_size;
  gmm_backend backend;
  uint32_t device_count;
  uint32_t reserved;
  char backend_name[16];      /**< "host", "cuda" or "sycl" */
  char driver_version[48];    /**< as the driver tells it, for example "13.0"; the kernel's release on the host */
  uint64_t decommit_after_ms; /**< as it is now, the default resolved: milliseconds or GMM_DECOMMIT_NEVER */
} gmm_context_info;

/** What was opened. Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_context_get_info(gmm_context *context, gmm_context_info *out) GMM_NOEXCEPT;

/**
 * Sets after how long free memory that nobody uses goes back to the driver by itself.
 *
 * A thread of the context, which runs only while a time is set, then empties the caches of threads that did nothing with a heap for
 * that long, and gives back as much of each heap in whole extents as was free at every moment of that long: what
 * steady use takes and gives back again stays, however short the time. It takes memory whose streams are done with it, never waits for a
 * stream, does nothing inside gmm_defer_begin(), and leaves a heap alone while one of its streams is being captured into a graph. (A capture
 * that begins at the very moment it looks may be disturbed: begin captures inside gmm_defer_begin() when a time is
 * set.) What the driver refuses to take back is logged once and offered again. Memory goes after one to two
 * and a half times the time, when its streams are done then. What an idle thread freed on GMM_STREAM_PER_THREAD stays in its cache, since only that thread can tell
 * when that stream is done: gmm_trim() or the end of the thread return it.
 *
 * The default is never, as the library starts no thread that nobody asked for, and as memory that goes costs driver calls when it
 * is wanted again: the policy is the program's. 10 seconds is what jemalloc does for host memory.
 *
 * @param milliseconds  1 to INT64_MAX; GMM_DECOMMIT_NEVER ends the thread; GMM_DECOMMIT_DEFAULT: as in gmm_context_desc.
 * Errors: NULL_ARGUMENT, INVALID_VALUE, SYSTEM (the thread could not be started; what was set before stays), FORKED.
 * Must not be called from the log callback. Since: 0.1
 */
GMM_API gmm_result gmm_set_decommit(gmm_context *context, uint64_t milliseconds) GMM_NOEXCEPT;

/** What a device can do. */
enum {
  GMM_DEVICE_CAN_PAUSE = 1u << 0,              /**< VMM memory: gmm_pause() and gmm_resume() */
  GMM_DEVICE_CAN_EXPORT_FD = 1u << 1,          /**< VMM and HOST memory as a file descriptor */
  GMM_DEVICE_CAN_LEGACY_IPC = 1u << 2,         /**< DEVICE memory by the driver's 64-byte handle */
  GMM_DEVICE_CAN_CONCURRENT_MANAGED = 1u << 3, /**< host and device may use managed memory at once; prefetch works */
  GMM_DEVICE_CAN_PIN = 1u << 4,                /**< gmm_pin() */
  GMM_DEVICE_CAN_PAGEABLE = 1u << 5,           /**< the device reads ordinary host memory (HMM, ATS) */
  GMM_DEVICE_CAN_FABRIC = 1u << 6,             /**< fabric handles between nodes */
  GMM_DEVICE_CAN_DMA_BUF = 1u << 8,            /**< DEVICE and VMM memory as a Linux dma-buf */
  GMM_DEVICE_IS_HOST = 1u << 7 /**< not a GPU: the host backend; results must not be taken for a GPU's */
};

typedef struct gmm_device_info {
  uint32_t struct_size;
  gmm_device device;
  uint32_t capabilities; /**< GMM_DEVICE_* bits */
  gmm_kind_mask kinds;   /**< bit (1u << kind) for each kind it has */
  uint64_t total_memory; /**< bytes */
  uint64_t free_memory;  /**< bytes, as the driver or the system tells now */
  uint64_t granularity;  /**< bytes: VMM memory comes in multiples of this */
  char name[128];
  uint8_t uuid[16];
} gmm_device_info;

/** Describes a device. Errors: NULL_ARGUMENT, INVALID_DEVICE, INVALID_DESCRIPTOR, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_device_get_info(gmm_context *context, gmm_device device, gmm_device_info *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
