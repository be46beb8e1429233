/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file types.h
 * Types, results and rules that every header shares.
 *
 * Rules of the interface:
 *  - Every function that can fail returns a ::gmm_result. Zero is success, a negative value is a
 *    failure that changed nothing, a positive value is success with a remark.
 *  - After a failure or a remark, gmm_last_error_message() says for this thread what was asked, what stood
 *    in the way and what to do.
 *  - Sizes and offsets are bytes, as uint64_t. Outputs come last and are written only on success.
 *  - A descriptor starts with struct_size = sizeof(that struct). Fill the rest with zero for the
 *    defaults; a NULL descriptor means all defaults. The struct_size of an older release (0.1 is the
 *    first) is accepted, a larger one (a newer program) is accepted when the part that this library does
 *    not know is zero. Reserved fields must be zero.
 *  - An output struct starts with struct_size too: the caller sets it, the library fills no more than that.
 *  - Every function may be called from any thread at any time unless its comment says otherwise.
 *    No function may be called from a callback of the library unless the callback says so.
 *  - In a child after fork() every function that uses a context fails with ::GMM_ERROR_FORKED.
 */
#ifndef GMM_TYPES_H
#define GMM_TYPES_H

#include <stdint.h>

#if defined(GMM_STATIC)
#define GMM_API
#elif defined(__GNUC__)
#define GMM_API __attribute__((visibility("default")))
#else
#define GMM_API
#endif

#if defined(__cplusplus)
#define GMM_NOEXCEPT noexcept
#define GMM_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define GMM_NOEXCEPT
#define GMM_NODISCARD __attribute__((warn_unused_result))
#else
#define GMM_NOEXCEPT
#define GMM_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** What a call came to: 0 success, above 0 success with a remark, below 0 failure. */
typedef int32_t gmm_result;

enum {
  GMM_OK = 0,
  /** Success: everything was as asked already (a second pause or resume); nothing changed. */
  GMM_UNCHANGED = 1,
  /** Success: it has not ended yet, or the time to wait was over first. */
  GMM_NOT_READY = 2,

  /* The caller's arguments. */
  GMM_ERROR_NULL_ARGUMENT = -1,      /**< a required argument is NULL */
  GMM_ERROR_INVALID_SIZE = -2,       /**< a size is zero where bytes are needed, or reaches past the memory */
  GMM_ERROR_SIZE_OVERFLOW = -3,      /**< a size is beyond what any backend can address */
  GMM_ERROR_INVALID_ALIGNMENT = -4,  /**< not a power of two, too large, or an address that is not aligned */
  GMM_ERROR_INVALID_KIND = -5,       /**< an unknown memory kind, or one the operation does not take */
  GMM_ERROR_INVALID_DEVICE = -6,     /**< no such device */
  GMM_ERROR_INVALID_TAG = -7,        /**< no such tag */
  GMM_ERROR_INVALID_FLAGS = -8,      /**< unknown flags, or flags that exclude each other */
  GMM_ERROR_INVALID_DESCRIPTOR = -9, /**< struct_size too small, or unknown or reserved fields not zero */
  GMM_ERROR_INVALID_VALUE = -10,     /**< another argument is out of its range */
  GMM_ERROR_INVALID_HANDLE = -11,    /**< a context, heap, stream or event that is not (or no longer) one */
  GMM_ERROR_UNKNOWN_POINTER = -12,   /**< the address was not given out by this context */
  GMM_ERROR_ALREADY_FREED = -13,     /**< the block was freed before */
  GMM_ERROR_INTERIOR_POINTER = -14,  /**< inside a block where its start is required */
  GMM_ERROR_OVERLAP = -15,           /**< the range overlaps one that is pinned differently */
  GMM_ERROR_NOT_PINNED = -16,        /**< no pin starts at this address */
  GMM_ERROR_UNBALANCED = -17,        /**< a pop, end or close without its push, begin or import */

  /* Memory and state. */
  GMM_ERROR_OUT_OF_MEMORY = -20,      /**< the device has no room, even after trimming */
  GMM_ERROR_OUT_OF_HOST_MEMORY = -21, /**< the host has no room for data or bookkeeping */
  GMM_ERROR_LIMIT_EXCEEDED = -22,     /**< a limit set by gmm_set_limit() would be passed */
  GMM_ERROR_PAUSED = -23,             /**< the memory is paused: resume its tag first */
  GMM_ERROR_BUSY = -24,               /**< live blocks, importers or pins hold what the call would change */
  GMM_ERROR_CAPTURING = -25,          /**< not allowed while a stream is being captured into a graph */
  GMM_ERROR_NOT_SUPPORTED = -26,      /**< this backend, device or kind cannot do it */
  GMM_ERROR_NO_BACKEND = -27,         /**< the backend asked for has no driver or no device here */
  GMM_ERROR_FORKED = -28,             /**< the context belongs to the parent process */
  GMM_ERROR_CANCELLED = -29,          /**< the program asked for the end of the operation, which was undone */

  /* The system below. gmm_last_native_code() has its own number. */
  GMM_ERROR_DRIVER = -30,  /**< the driver refused a call */
  GMM_ERROR_SYSTEM = -31,  /**< the operating system refused a call */
  GMM_ERROR_IO = -32,      /**< a file could not be written or read whole */
  GMM_ERROR_CORRUPT = -33, /**< what was kept is not what was written: a checksum differs */

  /* Sharing. */
  GMM_ERROR_IPC_INVALID_HANDLE = -40, /**< these bytes are not a handle of gmm, or of another version */
  GMM_ERROR_IPC_PEER_GONE = -41,      /**< the exporting process ended, or freed the memory */
  GMM_ERROR_IPC_REFUSED = -42,        /**< the exporter refused: another user, or a wrong token */
  GMM_ERROR_IPC_TIMEOUT = -43,        /**< the exporter did not answer in time */
  GMM_ERROR_IPC_REVOKED = -44         /**< the exporter took the memory back: a forced pause */
};

/** A device by its ordinal in the backend, from 0. */
typedef int32_t gmm_device;
/** The host's memory, where a function takes a location. */
#define GMM_DEVICE_HOST ((gmm_device)-1)

/** Kinds of memory. */
typedef uint32_t gmm_kind;
enum {
  GMM_KIND_UNSPECIFIED = 0, /**< in a descriptor: DEVICE; in an answer: memory that gmm does not know */
  GMM_KIND_DEVICE = 1,      /**< a driver allocation on the device; has the driver's legacy IPC */
  GMM_KIND_VMM = 2,         /**< mapped on the device: pausable, movable, exportable as a file descriptor */
  GMM_KIND_HOST = 3,        /**< page-locked on the host, visible to every device */
  GMM_KIND_MANAGED = 4      /**< one address for host and devices; the driver moves the pages */
};

/** Kinds as bits, for the answers about what a device can do: 1u << kind. */
typedef uint32_t gmm_kind_mask;

/** A tag groups allocations to be paused, limited and counted together. Made by gmm_tag_create(). */
typedef uint32_t gmm_tag;
#define GMM_TAG_CURRENT ((gmm_tag)0) /**< in a descriptor: the thread's current tag */
#define GMM_TAG_DEFAULT ((gmm_tag)1) /**< the tag of memory that nobody tagged; cannot be destroyed */

/**
 * A stream of the backend: work queued on one stream runs in order. On CUDA it is a CUstream or
 * cudaStream_t, on SYCL a DPCTLSyclQueueRef (a pointer to a sycl::queue), on the host backend it comes from gmm_stream_create(). Three values are special
 * and mean the same as in CUDA.
 */
typedef struct gmm_stream_opaque *gmm_stream;
#define GMM_STREAM_DEFAULT ((gmm_stream)0)    /**< the default stream (the same as LEGACY) */
#define GMM_STREAM_LEGACY ((gmm_stream)1)     /**< the one legacy default stream of the device */
#define GMM_STREAM_PER_THREAD ((gmm_stream)2) /**< the calling thread's own default stream */

/** A context: one backend, its heaps, tags and limits. See context.h. */
typedef struct gmm_context gmm_context;
/** A heap: one device, kind and tag. See memory.h. */
typedef struct gmm_heap gmm_heap;
/** A point in a stream's order. See stream.h. */
typedef struct gmm_event gmm_event;

/** The name of a result, for example "GMM_ERROR_OUT_OF_MEMORY"; "GMM_ERROR_UNKNOWN" for other numbers. Static text. Since: 0.1 */
GMM_API const char *gmm_result_name(gmm_result result) GMM_NOEXCEPT;

/** One sentence that explains a result. Static text. Since: 0.1 */
GMM_API const char *gmm_result_text(gmm_result result) GMM_NOEXCEPT;

/**
 * What the last failed call of this thread was asked, what stood in the way and what to do.
 * Empty before the first failure. The text belongs to the library and lives until the next failing
 * call of the same thread. A call that succeeds leaves it alone. Since: 0.1
 */
GMM_API const char *gmm_last_error_message(void) GMM_NOEXCEPT;

/**
 * The driver's (CUresult) or the system's (errno) own number behind the last failed call of this thread; 0 when
 * the failure was found by gmm itself. Since: 0.1
 */
GMM_API int32_t gmm_last_native_code(void) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
