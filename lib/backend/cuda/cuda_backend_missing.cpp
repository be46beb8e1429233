// SPDX-License-Identifier: Apache-2.0
// Replaces the CUDA backend in a library that is built without the driver API's header.
#if !defined(GMM_WITH_CUDA)

#include "backend/cuda/cuda_backend.h"

namespace gmm {

Status cuda_backend_create(const HostAllocator &, const Log &, Backend **) {
  return fail(
      GMM_ERROR_NO_BACKEND,
      "The CUDA backend was requested, but this library was built without CUDA; build it with -Dcuda=enabled, or use "
      "the host backend.");
}

}  // namespace gmm

#endif
