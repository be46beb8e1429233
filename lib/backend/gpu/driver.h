// SPDX-License-Identifier: Apache-2.0
// The driver library of a vendor: opens it at run time, resolves its entries, and explains its results.
#ifndef GMM_BACKEND_GPU_DRIVER_H
#define GMM_BACKEND_GPU_DRIVER_H

#include <gmm/context.h>

#include <atomic>

#include "backend/gpu/driver_api.h"
#include "base/environment.h"
#include "base/status.h"

namespace gmm::gpu {

// Calls an entry of a Driver. A failure names the entry.
#define GMM_CUDA_OF(driver, entry, ...) (driver).check((driver).entry(__VA_ARGS__), #entry)

class Driver;

// Everything in which the vendors differ. The entries of a Driver have CUDA's names, types and numbers.
struct Vendor {
  gmm_backend id;
  const char *backend;  // as GMM_BACKEND names it
  const char *name;
  const char *library;
  Variable library_variable;
  const char *to_install, *to_check;  // in messages: what brings the driver; where to look for its devices
  const char *memory_advice;          // in messages: for a lack of memory
  int major, minor;                   // a release in the driver's number of its version
  int oldest_version;
  bool has_kernels;
  bool unmaps_runs;  // one unmap may end several mappings
  Status (*resolve)(Driver *driver, void *library, const char *path);
  const char *(*name_of)(const char *entry);  // the vendor's name of an entry
  // The process that first initialised the driver. The driver does not survive fork(): a child must not even initialise
  // it, which hangs or crashes in some drivers.
  std::atomic<int> *initialised_by;
};
extern const Vendor kCuda, kHip;

class Driver {
 public:
  explicit Driver(const Vendor &of) : vendor(of) {}
  // Opens the library, resolves the entries and initialises the driver. Fails with NO_BACKEND and the reason.
  Status open();

  const Vendor &vendor;
  int major() const { return version_ / vendor.major; }
  int minor() const { return version_ % vendor.major / vendor.minor; }

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
  Status check_version(const char *path);
  int version_ = 0;
};

}  // namespace gmm::gpu
#endif
