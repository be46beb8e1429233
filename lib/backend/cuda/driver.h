// SPDX-License-Identifier: Apache-2.0
// The driver library: opens it at run time, resolves its entries, and explains its results.
#ifndef GMM_BACKEND_CUDA_DRIVER_H
#define GMM_BACKEND_CUDA_DRIVER_H

#include "backend/cuda/driver_api.h"
#include "base/status.h"

namespace gmm::cuda {

// Calls an entry of a Driver. A failure names the entry.
#define GMM_CUDA_OF(driver, entry, ...) (driver).check((driver).entry(__VA_ARGS__), #entry)

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

#define GMM_CUDA_MEMBER(name, suffix, version, parameters) name##suffix##_fn *name = nullptr;
#define GMM_CUDA_NONE(name, suffix, version, parameters)
  GMM_CUDA_ENTRIES(GMM_CUDA_MEMBER, GMM_CUDA_NONE, GMM_CUDA_NONE)
#undef GMM_CUDA_MEMBER
#undef GMM_CUDA_NONE

 private:
  Status resolve(void *library, const char *path);
  int version_ = 0;
};

}  // namespace gmm::cuda
#endif
