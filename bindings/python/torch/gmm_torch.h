/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gmm_torch.h
 * libgmm_torch.so.1: PyTorch's memory as C functions. gmm/_torch/library.py opens it, attaches it to gmm.context(), and
 * passes its functions to the C++ files that are compiled against the installed PyTorch. So statistics, tags and pauses
 * of Python see the tensors.
 *
 * No other program may use these functions: they change with the package.
 */
#ifndef GMM_TORCH_H
#define GMM_TORCH_H

#include <gmm/gmm.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

/* allocator.c */

/** Sets the context. GMM_ERROR_BUSY when it has another one already. */
GMM_API gmm_result gmm_torch_attach(gmm_context *context);
/** Forgets the context and all memory, in a child after fork(): they are the parent's. */
GMM_API void gmm_torch_forget(void);
/**
 * Makes later frees do nothing, at the interpreter's end: the driver may be gone, and the process's end frees memory.
 */
GMM_API void gmm_torch_end(void);
/** Sets the kind of new CUDA tensors, and whether they are managed instead. */
GMM_API void gmm_torch_set_kind(gmm_kind kind);
GMM_API void gmm_torch_set_managed(int32_t managed);
GMM_API int32_t gmm_torch_get_managed(void);
GMM_API void gmm_torch_dealloc(void *memory, ssize_t size, int device, gmm_stream stream);

#define GMM_TORCH_SLOTS 64
/**
 * The function that allocates memory of a tag and kind for a pluggable allocator under a torch.cuda.MemPool. That
 * allocator's other function is gmm_torch_dealloc(). NULL: GMM_TORCH_SLOTS pairs have one already. One thread at a
 * time.
 */
GMM_API void *gmm_torch_slot(gmm_tag tag, gmm_kind kind);

struct gmm_torch_native;
/** The functions of native.h. */
GMM_API const struct gmm_torch_native *gmm_torch_native_functions(void);

/* managed.c: CPU tensors in managed memory. A block is reused when no stream uses it any more, because the host waits
 * for no stream. */

GMM_API gmm_result gmm_torch_host_start(gmm_device device);
GMM_API void *gmm_torch_host_alloc(uint64_t size);
GMM_API void gmm_torch_host_free(void *memory);
/** Frees the blocks that streams have finished with; `wait`: waits for them. Returns the number of blocks. */
GMM_API uint64_t gmm_torch_host_collect(int32_t wait);
/** Notes that a stream uses the memory, of any heap. GMM_UNCHANGED: it is not gmm's. */
GMM_API gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream);
/**
 * Makes `location` the preferred location of a range and queues the migration, with RFC-0023's hints. A move to the
 * host leaves `device` its mapping.
 */
GMM_API gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device,
                                  gmm_stream stream);

/* Inside the library. */

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN gmm_context *torch_context(void);
/** The context for frees; NULL at the interpreter's end too. */
HIDDEN gmm_context *torch_context_for_free(void);
/**
 * Writes a failure to stderr where nothing may be raised. A child after fork() is silent, because its memory is the
 * parent's.
 */
HIDDEN void torch_complain(gmm_result result, const char *what, const void *memory);
/** The tag of CPU tensors' memory; 0 before gmm_torch_host_start(). */
HIDDEN gmm_tag torch_host_tag(void);
/** In a child after fork(): heap, tag and notes are the parent's, and a thread that is gone may have held a lock. */
HIDDEN void torch_managed_forget(void);
/** Gives RFC-0023's hints for new memory. host: for a CPU tensor. */
HIDDEN void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host);
/** After a trim: other memory may get these addresses next. */
HIDDEN void torch_advise_forget(void);

#endif
