/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver for tests and benchmarks, without cuda.h. A program that links with libcuda calls the functions below
 * by their symbols. One that opens it looks all of them up by cuda_driver_open().
 */
#ifndef TESTS_SUPPORT_CUDA_FUNCTIONS_H
#define TESTS_SUPPORT_CUDA_FUNCTIONS_H

#include <dlfcn.h>

#include "../../lib/backend/gpu/driver_api.h"

#ifdef __cplusplus
extern "C" {
#endif
#define DECLARE(name, suffix, version, parameters) name##suffix##_fn name##suffix;
GMM_CUDA_ENTRIES(DECLARE, DECLARE, DECLARE)
#undef DECLARE
#ifdef __cplusplus
}
#endif

/* A function that the driver lacks is NULL. */
struct cuda_driver {
#define MEMBER(name, suffix, version, parameters) name##suffix##_fn *name##suffix;
  GMM_CUDA_ENTRIES(MEMBER, MEMBER, MEMBER)
#undef MEMBER
};

static inline void cuda_driver_look_up(void *library, struct cuda_driver *out) {
#define FIND(name, suffix, version, parameters) *(void **)&out->name##suffix = dlsym(library, #name #suffix);
  GMM_CUDA_ENTRIES(FIND, FIND, FIND)
#undef FIND
}

/* Returns NULL, or why there is no driver. The library stays open. */
static inline const char *cuda_driver_open(struct cuda_driver *out) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  cuda_driver_look_up(library, out);
  return out->cuGetProcAddress_v2 != NULL ? NULL : "the driver is older than CUDA 12.0";
}

#endif
