// SPDX-License-Identifier: Apache-2.0
// The requests to the fake driver of the tests (fake_cuda.h), where it serves this process.
#ifndef GMM_TESTS_FAKE_DRIVER_H
#define GMM_TESTS_FAKE_DRIVER_H

#include <dlfcn.h>

#include "../support/fake_cuda/fake_cuda.h"
#include "../support/gmm_test.h"

static struct {
  int (*fail)(const char *entry, uint64_t kth, int error);
  uint64_t (*failures)(void);
  uint64_t (*count)(const char *entry);
  void (*live)(fake_cuda_live_t *out);
} fake;

// False on the host backend and with a real driver. A context has been opened before.
__attribute__((unused)) static bool find_fake_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // stays open
  if (library == NULL) return false;
  *(void **)&fake.fail = dlsym(library, "fake_cuda_fail");
  *(void **)&fake.failures = dlsym(library, "fake_cuda_failures");
  *(void **)&fake.count = dlsym(library, "fake_cuda_count");
  *(void **)&fake.live = dlsym(library, "fake_cuda_live");
  return fake.fail != NULL && fake.failures != NULL && fake.count != NULL && fake.live != NULL;
}

#endif
