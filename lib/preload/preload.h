/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file preload.h The functions of libgmm_preload.so in addition to CUDA's: its context, allocators for frameworks, and
 * the C symbols of torch_memory_saver.
 *
 * Nothing links against the library. A program finds the functions by dlsym() on the library or on RTLD_DEFAULT. The
 * library comes into a process by LD_PRELOAD, or by dlopen() for its functions alone. lib/preload/README.md describes
 * the environment variables.
 */
#ifndef GMM_PRELOAD_H
#define GMM_PRELOAD_H

#include <gmm/pause.h>
#include <stdbool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A stream of CUDA: cudaStream_t and CUstream are the same pointer. */
typedef void *gmm_preload_stream;

/**
 * Returns the one context of the process, which the first call that needs it creates.
 *
 * NULL: it cannot be created (no driver, no device, or the process was forked from one that had it), and
 * gmm_preload_last_error() says why. The context may be used as any other. It is never destroyed and must not be
 * released.
 */
GMM_API gmm_context *gmm_preload_context(void) GMM_NOEXCEPT;

/** Returns whether the context exists. It creates none. */
GMM_API bool gmm_preload_active(void) GMM_NOEXCEPT;

/** Returns why the last function of this library failed on this thread. "" before the first failure. */
GMM_API const char *gmm_preload_last_error(void) GMM_NOEXCEPT;

/**
 * Returns the tag of the memory of regions with this name and contents, and creates it if it does not exist.
 *
 * A name with contents DROP is the tag of that name. The others are "NAME#host" and "NAME#file". A region with "mmap"
 * has the tag "NAME#mmap", which this function does not return. A name over 48 bytes is shortened and ends in a number
 * that is made of the whole name.
 *
 * Errors: NULL_ARGUMENT, INVALID_VALUE, as gmm_tag_create(), NO_BACKEND and others if there is no context.
 */
GMM_API gmm_result gmm_preload_tag(const char *name, gmm_contents contents, gmm_tag *out) GMM_NOEXCEPT;

/**
 * The functions of a CUDAPluggableAllocator of PyTorch, and vLLM's my_malloc and my_free, for pools of memory. They
 * give VMM memory under the tag of the thread's region (below), or of GMM_PRELOAD_TAG outside of one. They are as
 * cudaMalloc and cudaFree: the memory is idle and good for any stream, and a free waits for the device. They never end
 * the process: after a failure they return NULL or have no effect, and gmm_preload_last_error() says why.
 */
GMM_API void *tms_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;
GMM_API void tms_torch_free(void *memory, ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT;

/* --- torch_memory_saver's functions ------------------------------------------------------------------------------ */
/*
 * The settings of a region belong to the thread, as in torch_memory_saver.
 */

/** Whether allocations of this thread go to gmm. TMS_INIT_ENABLE is the initial value. */
GMM_API void tms_set_interesting_region(bool interesting) GMM_NOEXCEPT;
GMM_API bool tms_get_interesting_region(void) GMM_NOEXCEPT;

/** Sets the region's tag, which is copied. The initial tag is "default". A returned text lives until the next set. */
GMM_API void tms_set_current_tag(const char *tag) GMM_NOEXCEPT;
GMM_API const char *tms_get_current_tag(void) GMM_NOEXCEPT;

/** Backs contents up in host memory (TMS_INIT_ENABLE_CPU_BACKUP). */
GMM_API void tms_set_enable_cpu_backup(bool enable) GMM_NOEXCEPT;
GMM_API bool tms_get_enable_cpu_backup(void) GMM_NOEXCEPT;

/** Backs contents up in a file (TMS_INIT_ENABLE_DISK_BACKUP). If both are enabled, host memory is used. */
GMM_API void tms_set_enable_disk_backup(bool enable) GMM_NOEXCEPT;
GMM_API bool tms_get_enable_disk_backup(void) GMM_NOEXCEPT;

/**
 * Takes "pinned" or "mmap", host memory that is not page-locked and that a resume returns to the system
 * (TMS_INIT_CPU_BACKUP_BACKEND). Another value is refused with a message.
 */
GMM_API void tms_set_cpu_backup_backend(const char *backend) GMM_NOEXCEPT;
GMM_API const char *tms_get_cpu_backup_backend(void) GMM_NOEXCEPT;

/**
 * Sets the directory of backup files for the whole process, from the next pause on (TMS_DISK_BACKUP_DIR).
 *
 * The files have names there, one an allocation; beyond 48 files several allocations share one.
 */
GMM_API void tms_set_disk_backup_dir(const char *directory) GMM_NOEXCEPT;

/**
 * Sets whether later resumes keep the backups in host memory readable (TMS_RETAIN_CPU_BACKUP): GMM_RESUME_RETAIN.
 */
GMM_API void tms_set_retain_cpu_backup(bool retain) GMM_NOEXCEPT;
GMM_API bool tms_get_retain_cpu_backup(void) GMM_NOEXCEPT;

/** Makes allocations of regions fail with out of memory if less than this would be left on the device. 0: no margin. */
GMM_API void set_memory_margin_bytes(uint64_t bytes) GMM_NOEXCEPT;

/**
 * Pauses or resumes all memory of a tag's name, whatever its contents.
 *
 * @param tag  NULL or "": all memory of the context.
 * Results: 0 on success, also if there was nothing to do or the tag does not exist. A gmm_result below 0: nothing has
 * changed, and gmm_preload_last_error() says why.
 */
GMM_API int tms_pause(const char *tag) GMM_NOEXCEPT;
GMM_API int tms_resume(const char *tag) GMM_NOEXCEPT;

/**
 * Returns the backed-up contents of paused or retained memory, to read until a resume that does not retain them, or
 * until the memory is freed.
 *
 * NULL: the memory is active and not retained, or its contents were dropped; gmm_preload_last_error() says which.
 */
GMM_API uint8_t *tms_get_cpu_backup_pointer(const uint8_t *memory, uint64_t size) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
