// SPDX-License-Identifier: Apache-2.0
// The disjoint pool of Intel's Unified Memory Framework: over memory of the system, or over the device's on CUDA. Its
// library is opened at run time. The few functions of UMF 1 and of the driver are declared here, so a build needs no
// headers of them.
#include <dlfcn.h>

#include <string>

#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

using Handle = struct UmfObject *;
using Result = int;  // 0 is success, of UMF and of CUDA

// Result, name and parameters of each function. A provider or pool is made of its functions and parameters.
#define UMF_FUNCTIONS(X)                                                             \
  X(const void *, umfDisjointPoolOps, ())                                            \
  X(Result, umfDisjointPoolParamsCreate, (Handle *))                                 \
  X(Result, umfDisjointPoolParamsDestroy, (Handle))                                  \
  X(Result, umfDisjointPoolParamsSetMaxPoolableSize, (Handle, size_t))               \
  X(Result, umfDisjointPoolParamsSetCapacity, (Handle, size_t))                      \
  X(Result, umfMemoryProviderCreate, (const void *, const void *, Handle *))         \
  X(Result, umfMemoryProviderDestroy, (Handle))                                      \
  X(Result, umfPoolCreate, (const void *, Handle, const void *, uint32_t, Handle *)) \
  X(Result, umfPoolDestroy, (Handle))                                                \
  X(void *, umfPoolMalloc, (Handle, size_t))                                         \
  X(Result, umfPoolFree, (Handle, void *))                                           \
  X(Result, umfCtlGet, (const char *, void *, size_t, ...))
#define UMF_OS_FUNCTIONS(X)                              \
  X(const void *, umfOsMemoryProviderOps, ())            \
  X(Result, umfOsMemoryProviderParamsCreate, (Handle *)) \
  X(Result, umfOsMemoryProviderParamsDestroy, (Handle))
#define UMF_CUDA_FUNCTIONS(X)                                        \
  X(const void *, umfCUDAMemoryProviderOps, ())                      \
  X(Result, umfCUDAMemoryProviderParamsCreate, (Handle *))           \
  X(Result, umfCUDAMemoryProviderParamsDestroy, (Handle))            \
  X(Result, umfCUDAMemoryProviderParamsSetContext, (Handle, void *)) \
  X(Result, umfCUDAMemoryProviderParamsSetDevice, (Handle, int))     \
  X(Result, umfCUDAMemoryProviderParamsSetMemoryType, (Handle, int))
#define DRIVER_FUNCTIONS(X)                           \
  X(Result, cuDeviceGet, (int *, int))                \
  X(Result, cuDevicePrimaryCtxRetain, (void **, int)) \
  X(Result, cuDevicePrimaryCtxRelease_v2, (int))
#define MEMBER(result, name, parameters) result(*name) parameters = nullptr;
#define FIND(result, name, parameters) &&symbol(library, #name, &name, &failure)

template <typename Function>
bool symbol(void *object, const char *name, Function **out, std::string *failure) {
  *out = reinterpret_cast<Function *>(dlsym(object, name));
  if (*out == nullptr) *failure = std::string("no ") + name + "() in the library";
  return *out != nullptr;
}

struct Disjoint : PlainPeer {
  static constexpr const char *kName = "umf";
  // By itself it pools blocks of up to 2 MiB; for larger ones it calls the system or driver each time.
  static constexpr size_t kMostPooled = size_t{128} << 20;

  size_t slabs_kept = 1024;  // free ones of a size; in effect it gives nothing back
  void *library = nullptr;
  Handle provider = nullptr, pool = nullptr;
  std::string failure;
  UMF_FUNCTIONS(MEMBER)

  void *allocate(uint64_t size, Stream) { return umfPoolMalloc(pool, size); }
  bool deallocate(void *block, uint64_t, Stream) { return umfPoolFree(pool, block) == 0; }
  uint64_t counter(const char *path) {
    size_t value = 0;
    return umfCtlGet(path, &value, sizeof value, provider) == 0 ? value : GMM_BENCH_UNKNOWN;
  }
  uint64_t reserved() { return counter("umf.provider.by_handle.{}.stats.allocated_memory"); }
  uint64_t peak_reserved() { return counter("umf.provider.by_handle.{}.stats.peak_memory"); }
  std::string error() { return failure.empty() ? "no memory" : failure; }

  bool good(Result result, const char *what) {
    if (result == 0) return true;
    failure = std::string(what) + ": error " + std::to_string(result);
    return false;
  }

  bool find_functions() {
    library = dlopen("libumf.so.1", RTLD_NOW | RTLD_LOCAL);  // never closed, as the other peers
    if (library == nullptr) {
      failure = std::string(dlerror()) + " (PyPI: umf and, for libhwloc, tcmlib; LD_LIBRARY_PATH names their folder)";
      return false;
    }
    return true UMF_FUNCTIONS(FIND);
  }

  // The provider is there.
  bool make_pool() {
    Handle params = nullptr;
    if (!good(umfDisjointPoolParamsCreate(&params), "umfDisjointPoolParamsCreate")) return false;
    const bool made = good(umfDisjointPoolParamsSetMaxPoolableSize(params, kMostPooled), "umfDisjointPoolParams") &&
                      good(umfDisjointPoolParamsSetCapacity(params, slabs_kept), "umfDisjointPoolParams") &&
                      good(umfPoolCreate(umfDisjointPoolOps(), provider, params, 0, &pool), "umfPoolCreate");
    return good(umfDisjointPoolParamsDestroy(params), "umfDisjointPoolParamsDestroy") && made;
  }

  void close() {
    if (pool != nullptr && umfPoolDestroy(pool) != 0) std::fputs("gmm-bench: warning: umfPoolDestroy fails\n", stderr);
    if (provider != nullptr && umfMemoryProviderDestroy(provider) != 0)
      std::fputs("gmm-bench: warning: umfMemoryProviderDestroy fails\n", stderr);
    pool = provider = nullptr;
  }
};

struct OnSystem : Disjoint {
  UMF_OS_FUNCTIONS(MEMBER)

  bool open(const gmm_bench_options &) {
    Handle params = nullptr;
    if (!find_functions() || !(true UMF_OS_FUNCTIONS(FIND)) ||
        !good(umfOsMemoryProviderParamsCreate(&params), "umfOsMemoryProviderParamsCreate"))
      return false;
    const bool made =
        good(umfMemoryProviderCreate(umfOsMemoryProviderOps(), params, &provider), "umfMemoryProviderCreate");
    return good(umfOsMemoryProviderParamsDestroy(params), "umfOsMemoryProviderParamsDestroy") && made && make_pool();
  }
};

struct OnCuda : Disjoint {
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_HOST | 1u << GMM_BENCH_MANAGED;
  static constexpr bool kNeedsCuda = true;
  UMF_CUDA_FUNCTIONS(MEMBER)
  DRIVER_FUNCTIONS(MEMBER)
  int device = 0;
  void *context = nullptr;

  bool find_all() {
    if (!find_functions() || !(true UMF_CUDA_FUNCTIONS(FIND))) return false;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return failure = dlerror(), false;
    return true DRIVER_FUNCTIONS(FIND);
  }

  // gmm has initialised the driver: a context of it found the backend out.
  bool open(const gmm_bench_options &options) {
    Handle params = nullptr;
    if (!find_all() || !good(cuDeviceGet(&device, options.device), "cuDeviceGet") ||
        !good(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") ||
        !good(umfCUDAMemoryProviderParamsCreate(&params), "umfCUDAMemoryProviderParamsCreate"))
      return false;
    // UMF_MEMORY_TYPE_HOST, _DEVICE, _SHARED
    const int type = options.kind == GMM_BENCH_HOST ? 1 : options.kind == GMM_BENCH_DEVICE ? 2 : 3;
    const bool made =
        good(umfCUDAMemoryProviderParamsSetContext(params, context), "umfCUDAMemoryProviderParams") &&
        good(umfCUDAMemoryProviderParamsSetDevice(params, device), "umfCUDAMemoryProviderParams") &&
        good(umfCUDAMemoryProviderParamsSetMemoryType(params, type), "umfCUDAMemoryProviderParams") &&
        good(umfMemoryProviderCreate(umfCUDAMemoryProviderOps(), params, &provider), "umfMemoryProviderCreate");
    return good(umfCUDAMemoryProviderParamsDestroy(params), "umfCUDAMemoryProviderParamsDestroy") && made &&
           make_pool();
  }

  void close() {
    Disjoint::close();
    if (context != nullptr && cuDevicePrimaryCtxRelease_v2(device) != 0)
      std::fputs("gmm-bench: warning: cuDevicePrimaryCtxRelease fails\n", stderr);
    context = nullptr;
  }
};

// UMF's own number of free slabs: it holds less memory and calls the system or driver more often.
template <typename Pool>
struct Trimming : Pool {
  static constexpr const char *kName = "umf-trim";
  Trimming() { this->slabs_kept = 4; }
};

constexpr gmm_bench_subject kOnSystem = make_subject<OnSystem>(),
                            kOnSystemTrimming = make_subject<Trimming<OnSystem>>(), kOnCuda = make_subject<OnCuda>(),
                            kOnCudaTrimming = make_subject<Trimming<OnCuda>>();

}  // namespace

const gmm_bench_subject *umf_subject(bool cuda) { return cuda ? &kOnCuda : &kOnSystem; }
const gmm_bench_subject *umf_trim_subject(bool cuda) { return cuda ? &kOnCudaTrimming : &kOnSystemTrimming; }

}  // namespace gmm_bench
