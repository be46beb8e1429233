/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file resource.h
 * A memory resource of gmm as C functions: what gmm._native gives to resource.cpp, which is compiled where RMM is.
 *
 * native/resource.c fills it. Any thread may call the functions, with or without Python's GIL.
 */
#ifndef GMM_PYTHON_RESOURCE_H
#define GMM_PYTHON_RESOURCE_H

#include <stddef.h>

#define GMM_PYTHON_RESOURCE_NAME "gmm.memory_resource" /* of the capsule */
#define GMM_PYTHON_RESOURCE_REASON 1024

typedef enum { GMM_RESOURCE_OK, GMM_RESOURCE_NO_MEMORY, GMM_RESOURCE_FAILED } gmm_python_outcome;

typedef struct gmm_python_resource {
  /** Allocates on a stream. After a failure `reason` has gmm's message. */
  gmm_python_outcome (*allocate)(struct gmm_python_resource *self, size_t size, void *stream, void **memory,
                                 char reason[GMM_PYTHON_RESOURCE_REASON]);
  /** Frees on a stream. sys.unraisablehook hears of a failure. */
  void (*deallocate)(struct gmm_python_resource *self, void *memory, void *stream);
  /** Count the owners. The context stays open while there are any. */
  void (*retain)(struct gmm_python_resource *self);
  void (*release)(struct gmm_python_resource *self);
} gmm_python_resource;

#endif
