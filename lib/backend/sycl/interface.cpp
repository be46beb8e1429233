// SPDX-License-Identifier: Apache-2.0
#include "backend/sycl/interface.h"

#include <dlfcn.h>

#include <atomic>

#include "backend/backend.h"
#include "base/environment.h"
#include "base/process.h"

namespace gmm::sycl {
namespace {

constexpr const char *kLibrary = "libDPCTLSyclInterface.so";

// The process that first opened the library. The runtime has threads, so it does not survive fork().
std::atomic<int> g_opened_by{0};
// dpctl's handlers receive a number and nothing that identifies the queue.
std::atomic<int> g_device_error{0};

}  // namespace

void Interface::device_failed(int code) { g_device_error.store(code == 0 ? -1 : code, std::memory_order_release); }

Status Interface::failed(const char *function) const {
  return fail(GMM_ERROR_DRIVER,
              "%s failed without a reason; set SYCL_UR_TRACE=1 in the environment to see it, and check that the memory "
              "belongs to this context.",
              function);
}

Status Interface::wait(EventRef event) const {
  DPCTLEvent_WaitAndThrow(event);
  const int code = g_device_error.exchange(0, std::memory_order_acq_rel);
  if (code == 0) return Status();
  return fail_native(
      GMM_ERROR_DRIVER, code,
      "Work that was queued on a SYCL device has failed (code %d); check the kernels and copies before this call.",
      code);
}

Status Interface::open() {
  GMM_TRY(check_opener("SYCL", g_opened_by.load(std::memory_order_relaxed)));
  const char *path = environment_text(Variable::kSyclLibrary);
  if (path == nullptr) path = kLibrary;
  // The library stays open, because the runtime has threads and exit handlers of its own.
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *reason = dlerror();
    return fail(GMM_ERROR_NO_BACKEND,
                "dpctl's C interface to SYCL could not be opened: %s; pip install dpctl, and name "
                "dpctl/libDPCTLSyclInterface.so in GMM_SYCL_LIBRARY, or use another backend.",
                reason != nullptr ? reason : path);
  }
#define GMM_SYCL_RESOLVE(name, result, parameters)                \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (name == nullptr)                                            \
    return fail(GMM_ERROR_NO_BACKEND, "%s has no " #name ": gmm knows dpctl 0.20 to 0.22; install one.", path);
  GMM_SYCL_FUNCTIONS(GMM_SYCL_RESOLVE)
#undef GMM_SYCL_RESOLVE
  g_opened_by.store(process_number(), std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm::sycl
