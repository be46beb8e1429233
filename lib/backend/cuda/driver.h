// SPDX-License-Identifier: Apache-2.0
// The driver library: opened at run time, its entries, and what its answers mean.
#ifndef GMM_BACKEND_CUDA_DRIVER_H
#define GMM_BACKEND_CUDA_DRIVER_H

#include "backend/cuda/driver_table.h"
#include "base/status.h"

namespace gmm::cuda {

class Driver {
 public:
  // Opens the library, resolves the entries and initialises it. GMM_ERROR_NO_BACKEND with the reason otherwise.
  Status open();

  int version() const { return version_; }  // 13000 = 13.0

  // The Status of an answer. Success is Status(); anything else becomes the thread's message, with the entry's name, the
  // driver's name and text for the number, and what to do. Callers put what was asked in front by prefix().
  Status check(CUresult result, const char *entry) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return Status();
    return failed(result, entry);
  }
  Status failed(CUresult result, const char *entry) const;

  // An optional entry that this driver does not have.
  Status missing(const char *entry) const;

#define GMM_CUDA_DECLARE(entry, version) decltype(&::entry) entry = nullptr;
  GMM_CUDA_REQUIRED(GMM_CUDA_DECLARE)
  GMM_CUDA_OPTIONAL(GMM_CUDA_DECLARE)
#undef GMM_CUDA_DECLARE
  // The new form, or else the old one; both NULL when the driver has neither.
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
