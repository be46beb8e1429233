// SPDX-License-Identifier: Apache-2.0
// The SYCL backend: USM memory and queues of one SYCL platform, through dpctl's C interface. README.md in this folder
// describes it.
#ifndef GMM_BACKEND_SYCL_SYCL_BACKEND_H
#define GMM_BACKEND_SYCL_SYCL_BACKEND_H

#include "backend/backend.h"

namespace gmm {

// Fails with NO_BACKEND if dpctl or a device is missing.
Status sycl_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);

}  // namespace gmm
#endif
