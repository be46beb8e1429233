/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file native.h
 * The functions of libgmm_torch.so.1 for extension.cpp and native_allocator.cpp, which a user's machine compiles
 * against the installed PyTorch.
 *
 * The two sides meet in one table of functions, so a compiled file needs neither gmm's headers nor its library to
 * link. gmm/_torch/compiler.py makes the name of the compiled file from the text of this one: a change of the table
 * compiles a new file.
 */
#ifndef GMM_TORCH_NATIVE_H
#define GMM_TORCH_NATIVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The memory of a device's heaps. */
typedef struct gmm_torch_memory {
  uint64_t reserved;      /**< bytes from the driver */
  uint64_t peak_reserved; /**< the highest number of these bytes so far */
  uint64_t extents;       /**< driver allocations */
} gmm_torch_memory;

/** Receives a driver allocation of the heaps that has memory now: nothing of it is paused. */
typedef void (*gmm_torch_extent)(void *user, uint64_t address, uint64_t size);

#define GMM_TORCH_HANDLE 256 /**< bytes of an IPC handle */

/**
 * The functions. An int32_t that they return is a gmm_result; no function throws. `stream` is a cudaStream_t, `event` a
 * gmm_event.
 */
typedef struct gmm_torch_native {
  /** Whether memory may be allocated and freed: not in a child after fork(), nor at the interpreter's end. */
  int32_t (*usable)(void);
  /** A block as a new tensor of this thread gets it: with the current tag and kind. */
  int32_t (*allocate)(uint64_t size, int32_t device, void *stream, void **out);
  /**
   * A segment for a private pool, from a driver allocation of its own, so that no queued work uses its memory. A stream
   * that is captured does not matter.
   */
  int32_t (*segment)(uint64_t size, int32_t device, void **out);
  void (*release)(void *memory, void *stream);
  /** A stream uses the block until its release. */
  int32_t (*record)(void *memory, int32_t device, void *stream);
  /** Returns free memory to the driver. It waits for streams. */
  int32_t (*trim)(void);
  /** Limits what a device's heaps hold to a part of its memory. */
  int32_t (*fraction)(double fraction, int32_t device);
  int32_t (*memory)(int32_t device, gmm_torch_memory *out);
  /** Bytes that the driver has left, and all bytes of the device. A call of the driver. */
  int32_t (*capacity)(int32_t device, uint64_t *free_bytes, uint64_t *total);
  /** Frees CPU tensors' blocks that streams have finished with. Returns their number. */
  uint64_t (*collect)(int32_t wait);
  int32_t (*extents)(int32_t device, gmm_torch_extent receive, void *user);
  /** A number that is another one when the extents of any device are. */
  uint64_t (*changes)(void);
  /** The block that an address lies in: its driver allocation and device. */
  int32_t (*base)(void *memory, void **base, uint64_t *size, int32_t *device);
  int32_t (*share)(const void *memory, uint8_t handle[GMM_TORCH_HANDLE]);
  int32_t (*open)(const uint8_t handle[GMM_TORCH_HANDLE], int32_t device, void **out);
  int32_t (*close)(void *memory);
  /** An event that stands for what is queued on a stream. */
  int32_t (*event)(int32_t device, void *stream, void **event);
  /** 1: passed, 0: not yet, below 0: a gmm_result. `wait`: waits for it. */
  int32_t (*passed)(void *event, int32_t wait);
  void (*forget)(void *event);
  /** Whether new tensors are managed; 0 in a child after fork(). */
  int32_t (*managed)(void);
  /** Managed memory for a CPU tensor, and its end. NULL: reason() tells why. */
  void *(*host_alloc)(uint64_t size);
  void (*host_free)(void *memory);
  /** A block of a gmm_kind for a storage of the package, which release() ends. NULL: reason() tells why. */
  void *(*block)(uint64_t size, int32_t device, void *stream, uint32_t kind);
  /** The reason of this thread's last failure. */
  const char *(*reason)(void);
} gmm_torch_native;

#ifdef __cplusplus
}
#endif
#endif
