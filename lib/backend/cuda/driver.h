// SPDX-License-Identifier: Apache-2.0
// The driver library: opens it at run time, resolves its entries, and explains its results.
#ifndef GMM_BACKEND_CUDA_DRIVER_H
#define GMM_BACKEND_CUDA_DRIVER_H

#include "backend/cuda/driver_api.h"
#include "base/status.h"

namespace gmm::cuda {

class Driver {
 public:
  // Opens the library, resolves the entries and initialises the driver. Fails with NO_BACKEND and the reason.
  Status open();

  int version() const { return version_; }  // 13000 = 13.0

  // Converts a result of the driver. A failure sets the thread's message: the entry, the driver's name and text of the
  // result, and what to do. The caller puts the request in front by prefix().
  Status check(CUresult result, const char *entry) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return Status();
    return failed(result, entry);
  }
  Status failed(CUresult result, const char *entry) const;

  // The failure of an operation whose optional entry this driver lacks.
  Status missing(const char *entry) const;
  // Fails with NOT_SUPPORTED if the driver lacks an entry of virtual memory management.
  Status check_vmm() const;

#define GMM_CUDA_DECLARE(entry, version, parameters) CUresult(*entry) parameters = nullptr;
  GMM_CUDA_REQUIRED(GMM_CUDA_DECLARE)
  GMM_CUDA_OPTIONAL(GMM_CUDA_DECLARE)
#undef GMM_CUDA_DECLARE
  // One of the new and the old form is set. Both are NULL if the driver has neither.
  MemAdviseFn mem_advise = nullptr;
  MemAdviseOldFn mem_advise_old = nullptr;
  MemPrefetchFn mem_prefetch = nullptr;
  MemPrefetchOldFn mem_prefetch_old = nullptr;
  CaptureInfoFn capture_info = nullptr;

 private:
  Status resolve(void *library, const char *path);
  int version_ = 0;
};

}  // namespace gmm::cuda
#endif
