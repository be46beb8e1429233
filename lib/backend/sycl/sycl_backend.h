// SPDX-License-Identifier: Apache-2.0
// The SYCL backend: USM memory and queues of one SYCL platform, by dpctl's C interface.
#ifndef GMM_BACKEND_SYCL_SYCL_BACKEND_H
#define GMM_BACKEND_SYCL_SYCL_BACKEND_H

#include "backend/backend.h"

namespace gmm {

// GMM_ERROR_NO_BACKEND when dpctl or a device is missing.
Status sycl_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);

}  // namespace gmm
#endif
