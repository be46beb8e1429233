// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the driver API of libcuda.so.1, opened at run time.
#ifndef GMM_BACKEND_CUDA_CUDA_BACKEND_H
#define GMM_BACKEND_CUDA_CUDA_BACKEND_H

#include "backend/backend.h"

namespace gmm {

// NO_BACKEND when there is no driver, no device, or the library was built without CUDA.
Status cuda_backend_create(const HostAllocator &allocator, const Log &log, Backend **out);

}  // namespace gmm
#endif
