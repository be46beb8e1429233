/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h
 * A context binds the library to one backend. Several contexts may live at once. The library has no state outside of
 * them.
 */
#ifndef GMM_CONTEXT_H
#define GMM_CONTEXT_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A backend: the driver or system that gmm takes memory from. */
typedef uint32_t gmm_backend;
enum {
  /**
   * The backend that GMM_BACKEND in the environment names. Without it: cuda or hip if its driver and a device answer,
   * else host. The library logs a warning when it goes on without an NVIDIA device that CUDA_VISIBLE_DEVICES does not
   * hide, or an AMD device that HIP_VISIBLE_DEVICES does not hide.
   */
  GMM_BACKEND_AUTO = 0,
  GMM_BACKEND_HOST = 1, /**< ordinary memory of this machine; it needs no GPU */
  GMM_BACKEND_CUDA = 2, /**< the CUDA driver, which gmm opens at run time */
  /**
   * SYCL USM by dpctl's C library, which gmm opens at run time: the file that GMM_SYCL_LIBRARY names, else by its name.
   */
  GMM_BACKEND_SYCL = 3,
  /** AMD's driver by HIP's library, which gmm opens at run time. It was tried without AMD's hardware only. */
  GMM_BACKEND_HIP = 4
};

/** The importance of a log message. */
typedef uint32_t gmm_log_level;
enum {
  GMM_LOG_ERROR = 1,   /**< something failed, and no result could report it */
  GMM_LOG_WARNING = 2, /**< something works, but worse than requested */
  GMM_LOG_INFO = 3,    /**< the backend and the devices that gmm chose */
  GMM_LOG_DEBUG = 4    /**< details for those who work on gmm */
};

/**
 * A function that receives log messages.
 *
 * The library calls it on the thread that logs, without a lock of the library held. `message` lives until the call
 * returns.
 */
typedef struct gmm_log_callback {
  void (*fn)(void *user, gmm_log_level level, const char *message);
  void *user;
} gmm_log_callback;

/**
 * Two functions that supply the library's own bookkeeping with memory, for programs that count every byte.
 *
 * Set both functions or neither. `allocate` returns memory that is aligned to `alignment` (a power of two, at most 64),
 * or NULL. `deallocate` gets the size that `allocate` was asked for. The library calls them on any thread and with its
 * locks held, so they must not call gmm.
 *
 * Everything that a context keeps comes from these functions, its caches of every thread included. All of it has
 * returned when the last gmm_context_release() returns, also while threads that used the context live on. This comes
 * from elsewhere:
 *  - the memory that the program allocates from gmm, the backups of its contents, and the buffers that copies of
 *    contents pass through;
 *  - one page of the system, in which a child of fork() finds that the context is not its own;
 *  - memory of the driver and the C library, for example the stacks of threads;
 *  - the record of a thread for all contexts: at most 8 KiB, and 16 bytes for each heap of the process, by malloc until
 *    the thread or the last context ends;
 *  - the record of a captured CUDA graph, which may outlive the context: 16 bytes by malloc.
 */
typedef struct gmm_host_allocator {
  void *(*allocate)(void *user, uint64_t size, uint64_t alignment);
  void (*deallocate)(void *user, void *memory, uint64_t size);
  void *user;
} gmm_host_allocator;

enum {
  /**
   * The program promises that it allocates nothing on a stream while that stream is captured into a graph.
   *
   * gmm then saves the driver call that each allocation on a stream otherwise makes (stream.h). If the program breaks
   * the promise, gmm may give out memory again that a graph still uses.
   */
  GMM_CONTEXT_NO_CAPTURE = 1u << 0,
  /** The context ends without a report of the blocks that are live then (gmm_context_release()). */
  GMM_CONTEXT_NO_LEAK_REPORT = 1u << 1,
  /**
   * Host backend: the CPU faults on the addresses of DEVICE and VMM memory, as it would with a GPU.
   *
   * So a program that runs in this mode has no such access. Copies and fills of gmm work, as do pauses and sharing.
   * VMM memory that gmm_move() moved to the host can be used by the CPU. A function of gmm_stream_call(), which stands
   * for a kernel, uses gmm_pointer_info::device_pointer. Other backends ignore the flag. GMM_STRICT_HOST=1 in the
   * environment sets it for every context.
   */
  GMM_CONTEXT_STRICT_HOST = 1u << 2,
  /**
   * Other processes of this user may look into the context and change it by the command `gmm`.
   *
   * `gmm ps` and `gmm top` show its memory. `gmm snapshot`, `gmm trace`, `gmm pause` and `gmm resume` with `--pid` do
   * what the functions of the same names do, on a thread of the library. The context listens on the socket that
   * sharing uses (ipc.h). GMM_CONTROL=1 in the environment sets it for every context, with a warning in place of an
   * error if there can be no socket.
   */
  GMM_CONTEXT_CONTROL = 1u << 3
};

/** GMM_DECOMMIT_AFTER_MS in the environment decides; without it: never. */
#define GMM_DECOMMIT_DEFAULT 0
/** Free memory returns to the driver only on request or when memory is short. */
#define GMM_DECOMMIT_NEVER UINT64_MAX

/** The options of gmm_context_create(). */
typedef struct gmm_context_desc {
  uint32_t struct_size;
  gmm_backend backend;
  uint32_t flags;                    /**< GMM_CONTEXT_* */
  uint32_t host_devices;             /**< host backend: devices that it shows, at most 16; 0: one */
  gmm_log_callback log;              /**< none: messages go to stderr as GMM_LOG says */
  gmm_host_allocator host_allocator; /**< none: malloc */
  uint64_t host_memory;              /**< host backend: bytes that each device shows; 0: the machine's memory */
  /** Milliseconds, GMM_DECOMMIT_DEFAULT or GMM_DECOMMIT_NEVER: see gmm_context_set_decommit(). */
  uint64_t decommit_after_ms;
} gmm_context_desc;

/**
 * Creates a context on a backend.
 *
 * @param desc  NULL: the defaults.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (the backend is unknown, here or in
 * GMM_BACKEND; GMM_DECOMMIT_AFTER_MS holds no time; too many host devices; one function of the host allocator without
 * the other), NO_BACKEND, OUT_OF_HOST_MEMORY, DRIVER, SYSTEM (no thread for decommit_after_ms; no socket for
 * GMM_CONTEXT_CONTROL).
 * Ownership: the caller has one reference and gives it back with gmm_context_release().
 */
GMM_NODISCARD GMM_API gmm_result gmm_context_create(const gmm_context_desc *desc, gmm_context **out) GMM_NOEXCEPT;

/**
 * Adds a reference to a context.
 *
 * Errors: NULL_ARGUMENT, FORKED.
 * Ownership: each reference needs its own gmm_context_release().
 */
GMM_API gmm_result gmm_context_retain(gmm_context *context) GMM_NOEXCEPT;

/**
 * Drops a reference to a context; the last one destroys it.
 *
 * The last release frees all memory of the context, live blocks included, and ends the context's threads. After the
 * last release of a process's last context, a library that carries gmm may be unloaded while threads live that used it.
 *
 * Blocks that are live then are reported to the log as warnings. A warning counts the live blocks of one tag, kind,
 * device, size and name. There are at most 32 of these warnings, those of most bytes, and one with the sum.
 * GMM_CONTEXT_NO_LEAK_REPORT turns the report off.
 *
 * @param context  NULL is allowed and does nothing.
 * Errors: FORKED (in a child after fork(), where the call touches nothing).
 * Streams: the last release waits for the context's streams.
 * Threads: during the last release no other thread may be inside a call on the context.
 */
GMM_API gmm_result gmm_context_release(gmm_context *context) GMM_NOEXCEPT;

/** The answer of gmm_context_query(). */
typedef struct gmm_context_info {
  uint32_t struct_size;
  gmm_backend backend;
  uint32_t device_count;
  uint32_t flags;             /**< GMM_CONTEXT_*, as gmm_context_create() got them */
  char backend_name[16];      /**< "host", "cuda", "hip" or "sycl" */
  char driver_version[48];    /**< the driver's own text, for example "13.0"; on the host the kernel's release */
  uint64_t decommit_after_ms; /**< the value in force: milliseconds or GMM_DECOMMIT_NEVER */
} gmm_context_info;

/**
 * Describes a context: its backend, devices, driver version and settings.
 *
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_context_query(gmm_context *context, gmm_context_info *out) GMM_NOEXCEPT;

/**
 * Sets how long memory stays free and unused before gmm returns it to the driver in the background.
 *
 * While a time is set, one thread of the context works in rounds. A round:
 *  - empties the thread caches of threads that did not use a heap for that time;
 *  - returns as many bytes of each heap, in whole extents, as were free at every moment of that time. Memory that a
 *    steady program frees and takes again stays, however short the time is;
 *  - takes only memory that no queued work may use, and never waits for a stream;
 *  - does nothing inside gmm_defer_begin(), and skips a heap while one of its streams is captured into a graph.
 *
 * Memory returns after 1 to 2.5 times the time, if no queued work may use it by then. gmm logs once that the driver
 * refused to take memory back, and offers that memory again. Memory that an idle thread freed on
 * ::GMM_STREAM_PER_THREAD stays in that thread's cache, because only that thread can tell when the stream is done.
 * gmm_trim() or the end of the thread returns it.
 *
 * A capture that begins at the moment of a round may be disturbed. Begin captures inside gmm_defer_begin() when a time
 * is set.
 *
 * @param milliseconds  1 to INT64_MAX; GMM_DECOMMIT_NEVER ends the thread; GMM_DECOMMIT_DEFAULT: as in
 * gmm_context_desc.
 * Errors: NULL_ARGUMENT, INVALID_VALUE, SYSTEM (the thread could not be started; the earlier setting stays), FORKED.
 * Threads: any, but not from the log callback.
 */
GMM_API gmm_result gmm_context_set_decommit(gmm_context *context, uint64_t milliseconds) GMM_NOEXCEPT;

/** The abilities of a device, as bits of gmm_device_info::capabilities. */
enum {
  GMM_DEVICE_CAN_PAUSE = 1u << 0,              /**< VMM memory: gmm_pause() and gmm_resume() */
  GMM_DEVICE_CAN_EXPORT_FD = 1u << 1,          /**< VMM and HOST memory as a file descriptor */
  GMM_DEVICE_CAN_LEGACY_IPC = 1u << 2,         /**< DEVICE memory by the driver's 64-byte handle */
  GMM_DEVICE_CAN_CONCURRENT_MANAGED = 1u << 3, /**< host and device may use managed memory at once; prefetch works */
  GMM_DEVICE_CAN_PIN = 1u << 4,                /**< gmm_pin() */
  GMM_DEVICE_CAN_PAGEABLE = 1u << 5,           /**< the device reads ordinary host memory (HMM, ATS) */
  /**
   * Memory of ::GMM_ALLOC_COMM has a fabric handle, which another machine of the same NVLink domain opens.
   *
   * The bit is the driver's answer. The driver still refuses such memory where no IMEX channel is set up. gmm then
   * allocates without a fabric handle, and clears the bit.
   */
  GMM_DEVICE_CAN_FABRIC = 1u << 6,
  GMM_DEVICE_CAN_DMA_BUF = 1u << 8,    /**< DEVICE and VMM memory as a Linux dma-buf */
  GMM_DEVICE_CAN_RDMA = 1u << 9,       /**< network adapters reach memory of ::GMM_ALLOC_COMM (GPUDirect RDMA) */
  GMM_DEVICE_CAN_HOST_NUMA = 1u << 10, /**< VMM memory on a NUMA node of the host: gmm_move() to ::GMM_DEVICE_NUMA */
  /** The device uses the host's page tables (ATS), as on Grace Hopper: it uses memory of malloc(), too. */
  GMM_DEVICE_CAN_HOST_PAGE_TABLES = 1u << 11,
  GMM_DEVICE_IS_CPU = 1u << 7 /**< the device is the host backend's; its timings say nothing about a GPU */
};

/** The answer of gmm_device_query(). */
typedef struct gmm_device_info {
  uint32_t struct_size;
  gmm_device device;
  uint32_t capabilities; /**< GMM_DEVICE_* bits */
  gmm_kind_mask kinds;   /**< bit (1u << kind) for each kind that the device has */
  uint64_t total_memory; /**< bytes */
  uint64_t free_memory;  /**< bytes, as the driver or the system reports them now */
  uint64_t granularity;  /**< bytes; a VMM allocation of the driver is a multiple of this */
  char name[128];
  uint8_t uuid[16];      /**< of a GPU: deviceUUID of VkPhysicalDeviceIDProperties */
  uint64_t held_bytes;   /**< bytes that this context holds from the driver */
  uint64_t budget_bytes; /**< growth ends there: the least of the limits and of held_bytes + free_memory */
  uint8_t luid[8];       /**< the device's number in Direct3D and Vulkan; zero on Linux, where the driver tells none */
  uint32_t node_mask;    /**< the device's node of a linked group, as a bit; 0: not known */
  int32_t numa_node;     /**< the host's NUMA node that is nearest to the device; -1: not known */
} gmm_device_info;

/**
 * Describes a device: its name, memory, kinds and capabilities.
 *
 * Errors: NULL_ARGUMENT, INVALID_DEVICE, INVALID_DESCRIPTOR, DRIVER, FORKED.
 */
GMM_API gmm_result gmm_device_query(gmm_context *context, gmm_device device, gmm_device_info *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
