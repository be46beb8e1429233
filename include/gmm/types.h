/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file types.h
 * The types, results and rules that every header shares.
 *
 * Rules of the interface:
 *  - Every function that can fail returns a ::gmm_result. Zero is success. A negative value is a failure, which changed
 *    nothing. ::GMM_UNCHANGED, a success that had nothing to do, is the one value above zero.
 *  - Success means that the call is done and every output is written. After a failure outputs that are pointers are
 *    NULL, and other outputs are untouched. A result that is not ready yet is a failure: ::GMM_ERROR_NOT_READY.
 *  - After any result but ::GMM_OK, gmm_last_error_message() says what the call was asked, what stood in the way and
 *    what to do. The message belongs to the calling thread.
 *  - Sizes and offsets are bytes, as uint64_t. Times are uint64_t and say their unit. Outputs come last.
 *  - A descriptor starts with struct_size = sizeof(that struct). Zero in any other field means its default, and a NULL
 *    descriptor means every default. Reserved fields must be zero.
 *  - A descriptor may be that of an older release, which is smaller: the fields that it lacks have their defaults. It
 *    may be that of a newer release, which is larger, if the part that this library does not know is zero. Otherwise
 *    the call fails with ::GMM_ERROR_NOT_SUPPORTED, and the message names the bytes.
 *  - An output struct starts with struct_size too. The caller sets it, and the library fills no more than that. Fields
 *    that this library does not know become zero.
 *  - A struct that the library lends to a callback has the library's size. See ::GMM_HAS.
 *  - Any thread may call any function at any time, unless the function's comment says otherwise.
 *  - A callback of the library must not call gmm, unless the callback's comment allows it.
 *  - In a child after fork() every function that uses a context fails with ::GMM_ERROR_FORKED; a try form, as always,
 *    with ::GMM_ERROR_NOT_READY.
 *  - A function that takes a handle fails with ::GMM_ERROR_NULL_ARGUMENT for NULL, unless its comment allows NULL, and
 *    with ::GMM_ERROR_INVALID_HANDLE for memory that is no such handle. No comment repeats these two.
 *  - After its end a handle must not be used. gmm knows heaps and streams that were destroyed, and fails with
 *    ::GMM_ERROR_INVALID_HANDLE. The memory of other handles is freed with them.
 *  - Everything is of release 1.0, unless a comment names a later one after "Since".
 *  - In a language whose generator reads no attributes, GMM_PLAIN leaves them out. It may lose macros: the values of
 *    GMM_STREAM_* are the pointers 0, 1 and 2; GMM_FOREVER, GMM_NO_LIMIT and GMM_DECOMMIT_NEVER are 2^64 - 1;
 *    GMM_LEASE_WITHDRAW is 2^32 - 1; GMM_TAG_DEFAULT is 1; GMM_DEVICE_HOST is -1 and GMM_DEVICE_NUMA(n) is -2 - n.
 *
 * How to read a comment: "Results" names successes other than ::GMM_OK and "Errors" names failures, without their
 * prefixes GMM_ and GMM_ERROR_. A condition follows in parentheses where the name does not tell it.
 */
#ifndef GMM_TYPES_H
#define GMM_TYPES_H

#include <stdint.h>

#if defined(__GNUC__) && !defined(GMM_STATIC) && !defined(GMM_PLAIN)
#define GMM_API __attribute__((visibility("default")))
#else
#define GMM_API
#endif

#if defined(__cplusplus)
#define GMM_NOEXCEPT noexcept
#define GMM_NODISCARD [[nodiscard]]
#elif defined(__GNUC__) && !defined(GMM_PLAIN)
#define GMM_NOEXCEPT
#define GMM_NODISCARD __attribute__((warn_unused_result))
#else
#define GMM_NOEXCEPT
#define GMM_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Whether a struct that the library lends to a callback has a field: that of an older library is smaller.
 *
 * The macro needs offsetof() of <stddef.h>, for example `GMM_HAS(info, gmm_oom_info, cause)`.
 */
#define GMM_HAS(info, type, field) ((info)->struct_size >= offsetof(type, field) + sizeof((info)->field))

/** The result of a call: 0 is success, ::GMM_UNCHANGED is a success that had nothing to do, below 0 is a failure. */
typedef int32_t gmm_result;

enum {
  GMM_OK = 0,
  /** Success: the state was already as requested (a second pause or resume), so the call changed nothing. */
  GMM_UNCHANGED = 1,

  /* The caller's arguments. */
  GMM_ERROR_NULL_ARGUMENT = -1,      /**< a required argument is NULL */
  GMM_ERROR_INVALID_SIZE = -2,       /**< a size is zero where bytes are needed, or reaches past the memory */
  GMM_ERROR_SIZE_OVERFLOW = -3,      /**< a size is beyond what any backend can address */
  GMM_ERROR_INVALID_ALIGNMENT = -4,  /**< not a power of two, too large, or the address is not aligned */
  GMM_ERROR_INVALID_KIND = -5,       /**< an unknown memory kind, or one that the operation does not take */
  GMM_ERROR_INVALID_DEVICE = -6,     /**< the device does not exist */
  GMM_ERROR_INVALID_TAG = -7,        /**< the tag does not exist */
  GMM_ERROR_INVALID_FLAGS = -8,      /**< unknown flags, or flags that exclude each other */
  GMM_ERROR_INVALID_DESCRIPTOR = -9, /**< struct_size is the size of no release, or a reserved field is not zero */
  GMM_ERROR_INVALID_VALUE = -10,     /**< another argument is out of its range */
  GMM_ERROR_INVALID_HANDLE = -11,    /**< not a handle of that type; a heap or stream that was destroyed */
  GMM_ERROR_UNKNOWN_POINTER = -12,   /**< this context did not return the address */
  GMM_ERROR_ALREADY_FREED = -13,     /**< the block was freed before */
  GMM_ERROR_INTERIOR_POINTER = -14,  /**< the address lies inside a block where its start is required */
  GMM_ERROR_OVERLAP = -15,           /**< the range overlaps one that is pinned differently, or taken addresses */
  GMM_ERROR_NOT_PINNED = -16,        /**< no pin starts at this address */
  GMM_ERROR_UNBALANCED = -17,        /**< a pop, end or close without a push, begin or import */

  /* Memory and state. */
  GMM_ERROR_OFFERED = -19,            /**< another lease of the context offers the tag */
  GMM_ERROR_OUT_OF_MEMORY = -20,      /**< the device has too little memory, even after a trim */
  GMM_ERROR_OUT_OF_HOST_MEMORY = -21, /**< the host has too little memory for data or bookkeeping */
  GMM_ERROR_LIMIT_EXCEEDED = -22,     /**< the call would exceed a limit of gmm_limit_set() */
  GMM_ERROR_PAUSED = -23,             /**< the memory is paused: resume its tag first */
  GMM_ERROR_BUSY = -24,               /**< live blocks, importers or pins use the object of the call */
  GMM_ERROR_CAPTURING = -25,          /**< the driver forbids it while a stream is captured into a graph */
  GMM_ERROR_NOT_SUPPORTED = -26,      /**< this backend, device, kind or older library cannot do it */
  GMM_ERROR_NO_BACKEND = -27,         /**< the requested backend has no driver or no device here */
  GMM_ERROR_FORKED = -28,             /**< the context belongs to the parent process */
  GMM_ERROR_CANCELLED = -29,          /**< the program cancelled the operation, which was undone */

  /* The driver and the system. gmm_last_native_code() returns their own number. */
  GMM_ERROR_DRIVER = -30,  /**< the driver refused a call */
  GMM_ERROR_SYSTEM = -31,  /**< the operating system refused a call */
  GMM_ERROR_IO = -32,      /**< a file could not be written or read completely */
  GMM_ERROR_CORRUPT = -33, /**< a backup's checksum differs from the one at its save, or a red zone is damaged */

  /* Sharing. */
  GMM_ERROR_IPC_INVALID_HANDLE = -40, /**< the bytes are no handle of gmm, or one of another version */
  GMM_ERROR_IPC_PEER_GONE = -41,      /**< the exporting process ended, or freed the memory */
  GMM_ERROR_IPC_REFUSED = -42,        /**< the exporter refused: a user that it did not name, or a wrong token */
  GMM_ERROR_IPC_TIMEOUT = -43,        /**< the exporter did not answer in time */
  GMM_ERROR_IPC_REVOKED = -44,        /**< the exporter revoked the memory by a forced pause */

  /* The same call may succeed later. */
  /** The operation has not finished, the wait reached its timeout first, or a try form would have to wait. */
  GMM_ERROR_NOT_READY = -50
};

/** A device by its ordinal in the backend, from 0. */
typedef int32_t gmm_device;
/** The host, where a function takes a location. */
#define GMM_DEVICE_HOST ((gmm_device)-1)
/** A NUMA node of the host, from 0, where gmm_move() takes a location. */
#define GMM_DEVICE_NUMA(node) ((gmm_device)(-2 - (int32_t)(node)))

/** A time to wait without a limit. */
#define GMM_FOREVER UINT64_MAX

/** A kind of memory. */
typedef uint32_t gmm_kind;
enum {
  GMM_KIND_UNSPECIFIED = 0, /**< in a descriptor: DEVICE; in an info: memory that gmm does not know */
  GMM_KIND_DEVICE = 1,      /**< a driver allocation on the device; it has the driver's legacy IPC */
  GMM_KIND_VMM = 2,         /**< mapped on the device: pausable, movable, exportable as a file descriptor */
  GMM_KIND_HOST = 3,        /**< page-locked on the host, visible to every device */
  GMM_KIND_MANAGED = 4      /**< one address for host and devices; the driver moves the pages */
};

/** Kinds of memory as bits: 1u << kind. */
typedef uint32_t gmm_kind_mask;

/** A tag groups allocations that are paused, limited and counted together. gmm_tag_create() makes one. */
typedef uint32_t gmm_tag;
#define GMM_TAG_CURRENT ((gmm_tag)0) /**< to allocate, for a heap or in a scope: the thread's current tag */
#define GMM_TAG_DEFAULT ((gmm_tag)1) /**< the tag of every allocation that names no other */

/**
 * A stream of the backend: work that is queued on one stream runs in order.
 *
 * | backend | a stream is |
 * | --- | --- |
 * | CUDA | a CUstream or cudaStream_t |
 * | SYCL | a DPCTLSyclQueueRef, which points to a sycl::queue |
 * | host | the result of gmm_stream_create() |
 *
 * Three values are special and mean the same as in CUDA.
 */
typedef struct gmm_stream_opaque *gmm_stream;
#define GMM_STREAM_DEFAULT ((gmm_stream)0)    /**< the default stream (the same as LEGACY) */
#define GMM_STREAM_LEGACY ((gmm_stream)1)     /**< the one legacy default stream of the device */
#define GMM_STREAM_PER_THREAD ((gmm_stream)2) /**< the calling thread's own default stream */

/** A context: one backend with its heaps, tags and limits. See context.h. */
typedef struct gmm_context gmm_context;
/** A heap: the memory of one device, kind and tag. See memory.h. */
typedef struct gmm_heap gmm_heap;
/** A point in a stream's order. See stream.h. */
typedef struct gmm_event gmm_event;
/** A copy of the state of a context's heaps. See stats.h. */
typedef struct gmm_snapshot gmm_snapshot;

/**
 * Returns the name of a result, for example "GMM_ERROR_OUT_OF_MEMORY".
 *
 * The name is "GMM_ERROR_UNKNOWN" for a number that this release does not know.
 *
 * Ownership: the text is static.
 */
GMM_API const char *gmm_result_name(gmm_result result) GMM_NOEXCEPT;

/**
 * Returns one sentence that explains a result.
 *
 * Ownership: the text is static.
 */
GMM_API const char *gmm_result_text(gmm_result result) GMM_NOEXCEPT;

/**
 * Returns the message of this thread's last call that failed or returned ::GMM_UNCHANGED.
 *
 * The message says what the call was asked, what stood in the way and what to do. It is empty before the first failure.
 * Ask right after the failure: a later call that succeeds may replace it, if it failed first and tried again, as an
 * allocation that trims.
 *
 * Ownership: the text belongs to the library. It lives until the thread's next such call.
 */
GMM_API const char *gmm_last_error_message(void) GMM_NOEXCEPT;

/**
 * Returns the driver's (CUresult) or the system's (errno) number behind this thread's last failed call.
 *
 * The number is 0 if gmm itself found the failure.
 */
GMM_API int32_t gmm_last_native_code(void) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
