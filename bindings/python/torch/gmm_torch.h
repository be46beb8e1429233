/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gmm_torch.h
 * libgmm_torch.so: gmm as PyTorch calls it. gmm/_torch_library.py opens it and passes addresses of its functions to PyTorch; it has the context of
 * gmm.context(), so that statistics, tags and pauses of Python see the tensors.
 *
 * Nothing here is for other programs: the functions change with the package.
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

/** Takes the context. BUSY when there is another one already. */
GMM_API gmm_result gmm_torch_attach(gmm_context *context);
/** In a child after fork(): the context is the parent's, and so is all memory. */
GMM_API void gmm_torch_forget(void);
/** At the interpreter's end: what is freed from here on goes with the process, as the driver may be gone. */
GMM_API void gmm_torch_end(void);
/** Throws what PyTorch shows as an error: `throw_memory` for want of memory (may be NULL), `throw_other` is c10::detail::torchCheckFail. */
GMM_API void gmm_torch_set_errors(void (*throw_memory)(const char *message),
                                  void (*throw_other)(const char *function, const char *file, uint32_t line,
                                                      const char *message));
/** The kind of new CUDA tensors, and whether they are managed instead. */
GMM_API void gmm_torch_set_kind(gmm_kind kind);
GMM_API void gmm_torch_set_managed(int32_t managed);
GMM_API int32_t gmm_torch_get_managed(void);

/* allocator.c: the current allocator of PyTorch. They raise PyTorch's errors. */

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
/** How often each of the hooks above was called, in the order init, reset, fraction, base, stream, begin, end, release. */
GMM_API void gmm_torch_calls(uint64_t calls[8]);

/* A block by its kind, for storages that the package makes itself. NULL: gmm_last_error_message(). */
GMM_API void *gmm_torch_block(uint64_t size, int device, gmm_stream stream, gmm_kind kind);

/* pools.c */

#define GMM_TORCH_SLOTS 64
/** A slot for a tag and kind: the functions of a pluggable allocator under a torch.cuda.MemPool. Below 0: an error; there are GMM_TORCH_SLOTS. */
GMM_API int32_t gmm_torch_slot(gmm_tag tag, gmm_kind kind, void **allocate, void **deallocate);
/** Makes the current allocator give the slot's memory to threads that allocate to the pool of that id. */
GMM_API gmm_result gmm_torch_route(uint64_t first, uint64_t second, int32_t slot);
GMM_API void gmm_torch_unroute(uint64_t first, uint64_t second);

/* host.c: managed memory of CPU tensors. It is handed out when no stream uses it any more, as the host waits for none. */

GMM_API gmm_result gmm_torch_host_start(gmm_device device);
GMM_API void *gmm_torch_host_alloc(uint64_t size);
GMM_API void gmm_torch_host_free(void *memory);
/** Gives back what streams are done with; `wait`: waits for them. Returns how many blocks went back. */
GMM_API uint64_t gmm_torch_host_collect(int32_t wait);
/** Says that a stream uses the memory, whichever heap it is from. GMM_UNCHANGED: it is not gmm's. */
GMM_API gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream);

/* advice.c: RFC-0023's hints */

/** Moves the pages of a range: `location` is preferred; for the host `device` keeps its mapping; the migration is queued. */
GMM_API gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device,
                                  gmm_stream stream);

/* Inside the library. */

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN gmm_context *torch_context(void);
/** The same for what is freed; NULL at the interpreter's end too. */
HIDDEN gmm_context *torch_context_for_free(void);
/** The tag of CPU tensors' memory; 0 before gmm_torch_host_start(). */
HIDDEN gmm_tag torch_host_tag(void);
/** In a child after fork(): heap, tag and notes are the parent's, and a lock may have been held by a thread that is not there. */
HIDDEN void torch_host_forget(void);
HIDDEN void torch_blocks_forget(void);
HIDDEN void torch_pools_forget(void);
/** Raises PyTorch's error for this thread's last failure; returns only when there is nothing to raise it with. */
HIDDEN void torch_throw(gmm_result result, const char *what);
#define TORCH_REASON 1024
/** What failed last on this thread; the next call of gmm may overwrite it. */
HIDDEN void torch_reason(char reason[TORCH_REASON]);
/** torch_throw() for a failure from before other calls of gmm. */
HIDDEN void torch_throw_reason(gmm_result result, const char *what, const char *reason);
/** For places where nothing may be raised: one line to stderr. A child after fork() is silent, as its memory is the parent's. */
HIDDEN void torch_complain(gmm_result result, const char *what, const void *memory);

typedef struct TorchRoute {
  gmm_tag tag;
  gmm_kind kind;
} TorchRoute;
/** Where this thread's allocations go; NULL: nowhere special. */
HIDDEN const TorchRoute *torch_route(void);
HIDDEN void torch_route_begin(gmm_torch_pool_id id);
HIDDEN void torch_route_end(gmm_torch_pool_id id);

/* blocks.c: what is known of a few blocks: streams that use a CPU tensor's memory, and whether its pages were moved */

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
/** Takes the note of a block away, when there is one: free() it. One load when there is no note at all. */
HIDDEN TorchBlock *torch_block_take(void *memory);

/** RFC-0023's hints for new memory, once for each piece that the driver gave. host: for a CPU tensor. */
HIDDEN void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host);
/** The same for one block whose pages were moved, before it is given out again. */
HIDDEN void torch_advise_again(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host);
/** After a trim: other memory may lie there next. */
HIDDEN void torch_advise_forget(void);

#endif
