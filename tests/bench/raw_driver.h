// SPDX-License-Identifier: Apache-2.0
// The functions of the driver that the raw baselines call. libcuda is opened here, so that nothing of gmm and of the
// CUDA runtime takes part.
#ifndef GMM_BENCH_RAW_DRIVER_H
#define GMM_BENCH_RAW_DRIVER_H

#include <cuda.h>
#include <dlfcn.h>

#include <string>

namespace gmm_bench {

// cuda.h turns a name into the symbol of its own version, and so does the text of it.
#define GMM_BENCH_TEXT_OF(name) #name
#define GMM_BENCH_TEXT(name) GMM_BENCH_TEXT_OF(name)
#define GMM_BENCH_DRIVER_CALLS(X)   \
  X(cuInit)                         \
  X(cuGetErrorName)                 \
  X(cuDeviceGet)                    \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuCtxSetCurrent)                \
  X(cuStreamCreate)                 \
  X(cuStreamSynchronize)            \
  X(cuMemAlloc)                     \
  X(cuMemCreate)                    \
  X(cuMemRelease)                   \
  X(cuMemAddressReserve)            \
  X(cuMemAddressFree)               \
  X(cuMemMap)                       \
  X(cuMemUnmap)                     \
  X(cuMemSetAccess)                 \
  X(cuMemExportToShareableHandle)   \
  X(cuMemImportFromShareableHandle) \
  X(cuMemHostAlloc)                 \
  X(cuMemFreeHost)                  \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemcpyDtoHAsync)              \
  X(cuMemcpyHtoDAsync)              \
  X(cuIpcGetMemHandle)              \
  X(cuIpcOpenMemHandle)             \
  X(cuIpcCloseMemHandle)

struct RawDriver {
#define GMM_BENCH_MEMBER(name) decltype(&::name) name = nullptr;
  GMM_BENCH_DRIVER_CALLS(GMM_BENCH_MEMBER)
#undef GMM_BENCH_MEMBER
};

inline bool find_driver(RawDriver *out, std::string *error) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return *error = dlerror(), false;
#define GMM_BENCH_FIND(name)                                                               \
  out->name = reinterpret_cast<decltype(out->name)>(dlsym(library, GMM_BENCH_TEXT(name))); \
  if (out->name == nullptr) return *error = "the driver has no " GMM_BENCH_TEXT(name), false;
  GMM_BENCH_DRIVER_CALLS(GMM_BENCH_FIND)
#undef GMM_BENCH_FIND
  return true;
}

}  // namespace gmm_bench
#endif
