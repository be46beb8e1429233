/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gmm_torch.h
 * libgmm_torch.so.1: the functions that PyTorch calls. gmm/_torch/library.py opens it, attaches it to gmm.context(),
 * and passes addresses of its functions to PyTorch. So statistics, tags and pauses of Python see the tensors.
 *
 * No other program may use these functions: they change with the package.
 */
#ifndef GMM_TORCH_H
#define GMM_TORCH_H

#include <gmm/gmm.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct gmm_torch_pool_id { /**< c10::MempoolId_t: a pair of numbers, passed in registers */
  uint64_t first, second;
} gmm_torch_pool_id;

/* context.c */

/** Sets the context. GMM_ERROR_BUSY when it has another one already. */
GMM_API gmm_result gmm_torch_attach(gmm_context *context);
/** Forgets the context and all memory, in a child after fork(): they are the parent's. */
GMM_API void gmm_torch_forget(void);
/**
 * Makes later frees do nothing, at the interpreter's end: the driver may be gone, and the process's end frees memory.
 */
GMM_API void gmm_torch_end(void);
/**
 * Sets the functions that throw PyTorch's errors: `throw_memory` when memory runs out (may be NULL), and `throw_other`,
 * which is c10::detail::torchCheckFail.
 */
GMM_API void gmm_torch_set_errors(void (*throw_memory)(const char *message),
                                  void (*throw_other)(const char *function, const char *file, uint32_t line,
                                                      const char *message));
/** Sets the kind of new CUDA tensors, and whether they are managed instead. */
GMM_API void gmm_torch_set_kind(gmm_kind kind);
GMM_API void gmm_torch_set_managed(int32_t managed);
GMM_API int32_t gmm_torch_get_managed(void);

/* allocator.c: PyTorch's current allocator. These functions raise PyTorch's errors. */

GMM_API void *gmm_torch_alloc(ssize_t size, int device, gmm_stream stream);
GMM_API void gmm_torch_dealloc(void *memory, ssize_t size, int device, gmm_stream stream);
GMM_API void gmm_torch_init(int device_count);
GMM_API void gmm_torch_reset(void);
GMM_API void gmm_torch_memory_fraction(double fraction, int device);
GMM_API void *gmm_torch_base_alloc(void *memory, size_t *size);
GMM_API void gmm_torch_use_on_stream(void *memory, gmm_stream stream);
GMM_API void gmm_torch_begin_pool(int device, gmm_torch_pool_id id, void *filter);
GMM_API void gmm_torch_end_pool(int device, gmm_torch_pool_id id);
GMM_API void gmm_torch_release_pool(int device, gmm_torch_pool_id id);
/** Counts the calls of the hooks, in the order init, reset, fraction, base, stream, begin, end, release. */
GMM_API void gmm_torch_calls(uint64_t calls[8]);

/* Allocates a block of a kind for a storage of the package. NULL: gmm_last_error_message() has the reason. */
GMM_API void *gmm_torch_block(uint64_t size, int device, gmm_stream stream, gmm_kind kind);

/* pools.c */

#define GMM_TORCH_SLOTS 64
/**
 * The slot of a tag and kind, with the functions of a pluggable allocator under a torch.cuda.MemPool. Below 0: all
 * GMM_TORCH_SLOTS are in use.
 */
GMM_API int32_t gmm_torch_slot(gmm_tag tag, gmm_kind kind, void **allocate, void **deallocate);
/** Makes the current allocator give the slot's memory to threads that allocate from the pool of that id. */
GMM_API gmm_result gmm_torch_route(uint64_t first, uint64_t second, int32_t slot);
GMM_API void gmm_torch_unroute(uint64_t first, uint64_t second);

/* host.c: managed memory of CPU tensors. A block is reused when no stream uses it any more, because the host waits for
 * no stream. */

GMM_API gmm_result gmm_torch_host_start(gmm_device device);
GMM_API void *gmm_torch_host_alloc(uint64_t size);
GMM_API void gmm_torch_host_free(void *memory);
/** Frees the blocks that streams have finished with; `wait`: waits for them. Returns the number of blocks. */
GMM_API uint64_t gmm_torch_host_collect(int32_t wait);
/** Notes that a stream uses the memory, of any heap. GMM_UNCHANGED: it is not gmm's. */
GMM_API gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream);

/* advice.c: RFC-0023's hints */

/**
 * Makes `location` the preferred location of a range and queues the migration. A move to the host leaves `device` its
 * mapping.
 */
GMM_API gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device,
                                  gmm_stream stream);

/* native.c */

struct gmm_torch_native;
/** The functions of native.h. */
GMM_API const struct gmm_torch_native *gmm_torch_native_functions(void);

/* Inside the library. */

#define HIDDEN __attribute__((visibility("hidden")))

/** gmm_torch_alloc() and gmm_torch_memory_fraction(), which return the failure. */
HIDDEN int32_t torch_allocate(uint64_t size, int32_t device, void *stream, void **out);
/** A block with a driver allocation of its own, on the default stream. */
HIDDEN int32_t torch_allocate_dedicated(uint64_t size, int32_t device, void **out);
HIDDEN int32_t torch_fraction(double fraction, int32_t device);

/** Counts a call of PyTorch for gmm_torch_calls(). */
HIDDEN void torch_count(int32_t which);

HIDDEN gmm_context *torch_context(void);
/** The same for frees; NULL at the interpreter's end too. */
HIDDEN gmm_context *torch_context_for_free(void);
/** The tag of CPU tensors' memory; 0 before gmm_torch_host_start(). */
HIDDEN gmm_tag torch_host_tag(void);
/** In a child after fork(): heap, tag and notes are the parent's, and a thread that is gone may have held a lock. */
HIDDEN void torch_host_forget(void);
HIDDEN void torch_blocks_forget(void);
HIDDEN void torch_pools_forget(void);
/** Raises PyTorch's error for this thread's last failure. Returns only when no function can raise it. */
HIDDEN void torch_throw(gmm_result result, const char *what);
#define TORCH_REASON 1024
/** Copies the reason of this thread's last failure, which the next call of gmm may overwrite. */
HIDDEN void torch_reason(char reason[TORCH_REASON]);
/** torch_throw() for a failure before other calls of gmm. */
HIDDEN void torch_throw_reason(gmm_result result, const char *what, const char *reason);
/**
 * Writes a failure to stderr where nothing may be raised. A child after fork() is silent, because its memory is the
 * parent's.
 */
HIDDEN void torch_complain(gmm_result result, const char *what, const void *memory);

typedef struct TorchRoute {
  gmm_tag tag;
  gmm_kind kind;
} TorchRoute;
/** The tag and kind of this thread's allocations; NULL: the defaults. */
HIDDEN const TorchRoute *torch_route(void);
/** Whether gmm_torch_route() knows the pool. */
HIDDEN int32_t torch_is_routed(gmm_torch_pool_id id);
HIDDEN void torch_route_begin(gmm_torch_pool_id id);
HIDDEN void torch_route_end(gmm_torch_pool_id id);

/* blocks.c: notes on some blocks: the streams that use a CPU tensor's memory, and whether its pages were moved */

#define TORCH_BLOCK_STREAMS 8
typedef struct TorchBlock {
  struct TorchBlock *next;
  void *memory;
  uint64_t size;
  uint32_t stream_count;
  uint32_t moved;
  gmm_stream streams[TORCH_BLOCK_STREAMS];
  gmm_device devices[TORCH_BLOCK_STREAMS];
} TorchBlock;
HIDDEN gmm_result torch_block_note_stream(void *memory, uint64_t size, gmm_device device, gmm_stream stream);
HIDDEN gmm_result torch_block_note_move(void *memory, uint64_t size);
/** Removes the note of a block and returns it for free(); NULL: it has none. One load when there are no notes. */
HIDDEN TorchBlock *torch_block_take(void *memory);

/** Gives RFC-0023's hints for new memory. host: for a CPU tensor. */
HIDDEN void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host);
/** The same for a block whose pages were moved, before it is reused. */
HIDDEN void torch_advise_again(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host);
/** After a trim: other memory may get these addresses next. */
HIDDEN void torch_advise_forget(void);

#endif
