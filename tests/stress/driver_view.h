// SPDX-License-Identifier: Apache-2.0
// The bytes that the backend has given out, counted without gmm: by the fake driver's own account, or by the memory
// files that this process has open on the host backend.
#ifndef GMM_TESTS_STRESS_DRIVER_VIEW_H
#define GMM_TESTS_STRESS_DRIVER_VIEW_H

#include "../support/fake_cuda/fake_cuda.h"
#include "../support/gmm_test.h"

extern struct fake_driver {
  void (*live)(fake_cuda_live_t *out);
  int (*fail)(const char *entry, uint64_t kth, int error);
  uint64_t (*failures)(void);
} fake;

bool find_fake_driver(void);

// Bytes by kind; `of_device` is DEVICE and VMM together where the driver does not tell them apart.
typedef struct driver_view {
  bool tells_kinds, tells_managed, tells_host;
  uint64_t device, vmm, of_device, host, managed;
  unsigned descriptors, threads;
  uint64_t virtual_bytes;
} driver_view;

driver_view look_at_driver(void);

#endif
