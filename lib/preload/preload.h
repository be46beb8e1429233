/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file preload.h
 * What libgmm_preload.so gives besides the CUDA functions that it stands in front of: its context, allocators for
 * frameworks, and the C symbols of torch_memory_saver.
 *
 * Find the functions with dlsym() on the library or on RTLD_DEFAULT; nothing links against the library. It takes part in a process by
 * LD_PRELOAD, or is opened by dlopen() for its functions alone. See lib/preload/README.md for the environment variables.
 */
#ifndef GMM_PRELOAD_H
#define GMM_PRELOAD_H

#include <gmm/pause.h>
#include <stdbool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A stream as CUDA has it: cudaStream_t and CUstream are the same pointer. */
typedef void *gmm_preload_stream;

/**
 * The one context of the process, made by the first call that needs it, never destroyed: it may be used like any other, and must not be
 * released. NULL when it cannot be made (no driver, no device, or the process was forked from one that had it): gmm_preload_last_error() says why.
 */
GMM_API gmm_context *gmm_preload_context(void) GMM_NOEXCEPT;

/** Whether the context was made already. Makes nothing. */
GMM_API bool gmm_preload_active(void) GMM_NOEXCEPT;

/** Why the last function of this library failed on this thread; "" before the first failure. */
GMM_API const char *gmm_preload_last_error(void) GMM_NOEXCEPT;

/**
 * The tag that memory of regions of this name and contents goes under. A name with contents DROP is the tag of that name; the others are
 * "NAME#host" and "NAME#file". Names over 48 bytes are shortened, and end in a number made of the whole name. Made when it does not exist.
 * Errors: NULL_ARGUMENT, INVALID_VALUE, NO_BACKEND and others when there is no context, as gmm_tag_create().
 */
GMM_API gmm_result gmm_preload_tag(const char *name, gmm_contents contents, gmm_tag *out) GMM_NOEXCEPT;

/* --- Allocators for frameworks --------------------------------------------------------------------------------- */
/*
 * The signature of PyTorch's CUDAPluggableAllocator and of vLLM's my_malloc and my_free. VMM memory under the tag of the thread's region (below),
 * or of GMM_PRELOAD_TAG outside of one. They never end the process: NULL, or no effect, and gmm_preload_last_error().
 */

/** In the order of `stream`: use it without another cache on top (torch.cuda.memory.change_current_allocator) or in a MemPool. */
GMM_API void *gmm_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;
GMM_API void gmm_torch_free(void *memory, ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;
/** CUDAPluggableAllocator's set_record_stream_fn: `stream` uses the memory too. */
GMM_API void gmm_torch_record_stream(void *memory, gmm_preload_stream stream) GMM_NOEXCEPT;

/** As cudaMalloc and cudaFree: idle memory for any stream, and a free that waits for the device. */
GMM_API void *tms_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;
GMM_API void tms_torch_free(void *memory, ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;

/* --- torch_memory_saver's functions ------------------------------------------------------------------------------ */
/*
 * What a region is made of belongs to the thread, as there. Besides, the region that was entered last in the process holds for every
 * thread that is in none, until the thread that entered it leaves it (GMM_PRELOAD_REGION_SCOPE=thread: not).
 */

/** Whether allocations of this thread go to gmm. The start value is TMS_INIT_ENABLE. */
GMM_API void tms_set_interesting_region(bool interesting) GMM_NOEXCEPT;
GMM_API bool tms_get_interesting_region(void) GMM_NOEXCEPT;

/** The region's tag, copied. The start value is "default". The text that is given out lives until the thread sets another. */
GMM_API void tms_set_current_tag(const char *tag) GMM_NOEXCEPT;
GMM_API const char *tms_get_current_tag(void) GMM_NOEXCEPT;

/** Contents are kept in host memory. TMS_INIT_ENABLE_CPU_BACKUP. */
GMM_API void tms_set_enable_cpu_backup(bool enable) GMM_NOEXCEPT;
GMM_API bool tms_get_enable_cpu_backup(void) GMM_NOEXCEPT;

/** Contents are kept in a file. TMS_INIT_ENABLE_DISK_BACKUP. Where both are set, host memory it is. */
GMM_API void tms_set_enable_disk_backup(bool enable) GMM_NOEXCEPT;
GMM_API bool tms_get_enable_disk_backup(void) GMM_NOEXCEPT;

/** "pinned" or "mmap"; another value is refused with a message. TMS_INIT_CPU_BACKUP_BACKEND. */
GMM_API void tms_set_cpu_backup_backend(const char *backend) GMM_NOEXCEPT;
GMM_API const char *tms_get_cpu_backup_backend(void) GMM_NOEXCEPT;

/** The folder of files, for the whole process, from the next pause on. TMS_DISK_BACKUP_DIR. */
GMM_API void tms_set_disk_backup_dir(const char *directory) GMM_NOEXCEPT;

/** Whether room for contents is kept for the next pause; gmm keeps it in any case, and gmm_trim() gives it back. TMS_RETAIN_CPU_BACKUP. */
GMM_API void tms_set_retain_cpu_backup(bool retain) GMM_NOEXCEPT;
GMM_API bool tms_get_retain_cpu_backup(void) GMM_NOEXCEPT;

/** Allocations of regions fail with out of memory where less than this would be left on the device. 0: none. */
GMM_API void set_memory_margin_bytes(uint64_t bytes) GMM_NOEXCEPT;

/**
 * Pauses or resumes all memory of the tag's name, whatever its contents; NULL or "": all memory of the context. 0 on success, also
 * when there was nothing to do or no such tag; else a gmm_result below 0: nothing has changed, and tms_last_error() says why.
 */
GMM_API int tms_pause(const char *tag) GMM_NOEXCEPT;
GMM_API int tms_resume(const char *tag) GMM_NOEXCEPT;

/** The kept contents of paused memory, to read until it is resumed or freed. NULL while it is active, or when nothing was kept: tms_last_error(). */
GMM_API uint8_t *tms_get_cpu_backup_pointer(const uint8_t *memory, uint64_t size) GMM_NOEXCEPT;

/** The same as gmm_preload_last_error(). */
GMM_API const char *tms_last_error(void) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
