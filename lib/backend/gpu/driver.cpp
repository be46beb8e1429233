// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/driver.h"

#include <dlfcn.h>

#include <atomic>

#include "backend/backend.h"
#include "base/process.h"

namespace gmm::gpu {
namespace {

struct Meaning {
  gmm_result code;
  const char *advice;
};

// The meaning of the driver's results, for all of gmm.
Meaning meaning(CUresult result, const Vendor &vendor) {
  const int number = static_cast<int>(result);
  if (number >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && number <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    return {GMM_ERROR_CAPTURING, "end the stream's capture first, or use a stream that is not captured"};
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return {GMM_ERROR_OUT_OF_MEMORY, vendor.memory_advice};
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return {
          GMM_ERROR_INVALID_HANDLE,
          "pass a live stream or event of this device; a device reset (cuDevicePrimaryCtxReset) destroys all of them"};
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
      return {GMM_ERROR_NOT_SUPPORTED, "gmm_device_query() says what the device can do"};
    case CUDA_ERROR_INVALID_DEVICE:
      return {GMM_ERROR_INVALID_DEVICE, "use a device below the context's device count"};
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
      return {GMM_ERROR_NO_BACKEND, vendor.to_check};
    case CUDA_ERROR_OPERATING_SYSTEM:
      return {GMM_ERROR_SYSTEM, "check ulimit -l, ulimit -n and the kernel's log"};
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
      return {GMM_ERROR_OVERLAP, "unpin the range that overlaps first"};
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
      return {GMM_ERROR_NOT_PINNED, "pin the memory first"};
    case CUDA_ERROR_NOT_INITIALIZED:
      return {GMM_ERROR_DRIVER,
              "the process was forked after the driver had started; start it by exec or spawn instead"};
    case CUDA_ERROR_DEINITIALIZED:
      return {GMM_ERROR_DRIVER, "the driver has shut down with the process; release the context before the exit"};
    case CUDA_ERROR_NOT_PERMITTED:
      return {GMM_ERROR_DRIVER, "do not call this from a function that runs on a stream"};
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return {
          GMM_ERROR_DRIVER,
          "work queued earlier has failed and the device's context is lost; find the kernel with compute-sanitizer and "
          "restart the process"};
    default:
      return {GMM_ERROR_DRIVER, "see the driver's documentation for this entry"};
  }
}

Status resolve_cuda(Driver *driver, void *library, const char *path) {
  // The form with five parameters exists since 12.0. CUDA 11.3 to 11.8 had one with four.
  auto get = reinterpret_cast<cuGetProcAddress_v2_fn *>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr)
    return fail(GMM_ERROR_NO_BACKEND,
                "%s has no cuGetProcAddress_v2, as it is older than CUDA 12.0; install a newer driver.", path);

  // The legacy stream semantics hold, however the program was compiled: the special stream values name the stream that
  // is meant.
  const auto find = [&](const char *name, int version) -> void * {
    void *address = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (get(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS) return nullptr;
    return found == CU_GET_PROC_ADDRESS_SUCCESS ? address : nullptr;
  };

#define GMM_CUDA_REQUIRE(name, suffix, version, parameters)                                             \
  driver->name = reinterpret_cast<name##suffix##_fn *>(find(#name, version));                           \
  if (driver->name == nullptr)                                                                          \
    return fail(GMM_ERROR_NO_BACKEND,                                                                   \
                "%s has no " #name " of version %d.%d; install a driver for CUDA 12.0 or newer.", path, \
                (version) / 1000, (version) % 1000 / 10);
#define GMM_CUDA_NONE(name, suffix, version, parameters)
  GMM_CUDA_ENTRIES(GMM_CUDA_REQUIRE, GMM_CUDA_NONE, GMM_CUDA_NONE)
#undef GMM_CUDA_REQUIRE
#undef GMM_CUDA_NONE

  return Status();
}

const char *own_name(const char *entry) { return entry; }

std::atomic<int> g_cuda_initialised_by{0};

}  // namespace

constexpr Vendor kCuda = {
    .id = GMM_BACKEND_CUDA,
    .backend = "cuda",
    .name = "CUDA",
    .library = "libcuda.so.1",
    .library_variable = Variable::kCudaDriver,
    .to_install = "the NVIDIA driver",
    .to_check = "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    .memory_advice = "free or trim memory, pause a tag, or request less",
    .major = 1000,
    .minor = 10,
    .oldest_version = 12000,
    .has_kernels = true,
    .unmaps_runs = true,
    .resolve = &resolve_cuda,
    .name_of = &own_name,
    .initialised_by = &g_cuda_initialised_by,
};

Status Driver::failed(CUresult result, const char *entry) const {
  const Meaning means = meaning(result, vendor);
  const char *name = nullptr;
  const char *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no text";
  return fail_native(means.code, static_cast<int32_t>(result), "%s answered %s (%d: %s); %s.", vendor.name_of(entry),
                     name, static_cast<int>(result), text, means.advice);
}

Status Driver::check_version(const char *path) {
  if (CUresult result = cuDriverGetVersion(&version_); result != CUDA_SUCCESS) {
    failed(result, "cuDriverGetVersion").ignore();  // its message stays, with the code NO_BACKEND
    return prefix(Status(GMM_ERROR_NO_BACKEND), "%s does not tell its version: ", path);
  }
  if (version_ < vendor.oldest_version)
    return fail(GMM_ERROR_NO_BACKEND, "The %s driver is of version %d.%d; gmm needs %d.%d or newer.", vendor.name,
                major(), minor(), vendor.oldest_version / vendor.major,
                vendor.oldest_version % vendor.major / vendor.minor);
  return Status();
}

Status Driver::open() {
  GMM_TRY(check_opener(vendor.name, vendor.initialised_by->load(std::memory_order_relaxed)));
  const char *path = environment_text(vendor.library_variable);
  if (path == nullptr) path = vendor.library;
  // The library stays open, because the driver has threads and exit handlers of its own.
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char *reason = dlerror();
    return fail(GMM_ERROR_NO_BACKEND, "The %s driver could not be opened: %s; install %s, or use the host backend.",
                vendor.name, reason != nullptr ? reason : path, vendor.to_install);
  }
  Status status = vendor.resolve(this, library, path);
  if (status.ok()) status = check_version(path);
  if (!status.ok()) {
    dlclose(library);  // the driver is not initialised, so none of its code runs
    return status;
  }
  if (CUresult result = cuInit(0); result != CUDA_SUCCESS) {
    failed(result, "cuInit").ignore();  // its message stays, with the code NO_BACKEND
    return prefix(Status(GMM_ERROR_NO_BACKEND), "The %s driver %s does not start: ", vendor.name, path);
  }
  vendor.initialised_by->store(process_number(), std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm::gpu
