// SPDX-License-Identifier: Apache-2.0
// The host backend: every kind of memory without a GPU. A product, not a mock.
#ifndef GMM_BACKEND_HOST_HOST_BACKEND_H
#define GMM_BACKEND_HOST_HOST_BACKEND_H

#include "backend/backend.h"

namespace gmm {

struct HostBackendOptions {
  uint64_t memory = 0;   // bytes each device pretends to have; 0: the machine's
  uint32_t devices = 0;  // 0: one
};

Status host_backend_create(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options,
                           Backend **out);

}  // namespace gmm
#endif
