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

struct Umf {
  // Each takes the functions of a provider or pool, its parameters and where the handle goes.
  const void *(*disjoint_ops)() = nullptr;
  Result (*disjoint_params_create)(Handle *) = nullptr;
  Result (*disjoint_params_destroy)(Handle) = nullptr;
  Result (*disjoint_set_max_poolable_size)(Handle, size_t) = nullptr;
  Result (*disjoint_set_capacity)(Handle, size_t) = nullptr;
  Result (*provider_create)(const void *, const void *, Handle *) = nullptr;
  Result (*provider_destroy)(Handle) = nullptr;
  Result (*pool_create)(const void *, Handle, const void *, uint32_t, Handle *) = nullptr;
  Result (*pool_destroy)(Handle) = nullptr;
  void *(*pool_malloc)(Handle, size_t) = nullptr;
  Result (*pool_free)(Handle, void *) = nullptr;
  Result (*ctl_get)(const char *, void *, size_t, ...) = nullptr;
};

template <typename Function>
bool symbol(void *object, const char *name, Function **out, std::string *failure) {
  *out = reinterpret_cast<Function *>(dlsym(object, name));
  if (*out == nullptr) *failure = std::string("no ") + name + "() in the library";
  return *out != nullptr;
}

struct Disjoint : Umf {
  static constexpr const char *kName = "umf";
  struct Stream {};
  // By itself it pools blocks of up to 2 MiB; for larger ones it calls the system or driver each time.
  static constexpr size_t kMostPooled = size_t{128} << 20;

  size_t slabs_kept = 1024;  // free ones of a size; in effect it gives nothing back
  void *library = nullptr;
  Handle provider = nullptr, pool = nullptr;
  std::string failure;

  Stream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  void *allocate(uint64_t size, Stream) { return pool_malloc(pool, size); }
  bool deallocate(void *block, uint64_t, Stream) { return pool_free(pool, block) == 0; }
  uint64_t counter(const char *path) {
    size_t value = 0;
    return ctl_get(path, &value, sizeof value, provider) == 0 ? value : GMM_BENCH_UNKNOWN;
  }
  uint64_t reserved() { return counter("umf.provider.by_handle.{}.stats.allocated_memory"); }
  uint64_t peak_reserved() { return counter("umf.provider.by_handle.{}.stats.peak_memory"); }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
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
    return symbol(library, "umfDisjointPoolOps", &disjoint_ops, &failure) &&
           symbol(library, "umfDisjointPoolParamsCreate", &disjoint_params_create, &failure) &&
           symbol(library, "umfDisjointPoolParamsDestroy", &disjoint_params_destroy, &failure) &&
           symbol(library, "umfDisjointPoolParamsSetMaxPoolableSize", &disjoint_set_max_poolable_size, &failure) &&
           symbol(library, "umfDisjointPoolParamsSetCapacity", &disjoint_set_capacity, &failure) &&
           symbol(library, "umfMemoryProviderCreate", &provider_create, &failure) &&
           symbol(library, "umfMemoryProviderDestroy", &provider_destroy, &failure) &&
           symbol(library, "umfPoolCreate", &pool_create, &failure) &&
           symbol(library, "umfPoolDestroy", &pool_destroy, &failure) &&
           symbol(library, "umfPoolMalloc", &pool_malloc, &failure) &&
           symbol(library, "umfPoolFree", &pool_free, &failure) && symbol(library, "umfCtlGet", &ctl_get, &failure);
  }

  // The provider is there.
  bool make_pool() {
    Handle params = nullptr;
    if (!good(disjoint_params_create(&params), "umfDisjointPoolParamsCreate")) return false;
    const bool made = good(disjoint_set_max_poolable_size(params, kMostPooled), "umfDisjointPoolParams") &&
                      good(disjoint_set_capacity(params, slabs_kept), "umfDisjointPoolParams") &&
                      good(pool_create(disjoint_ops(), provider, params, 0, &pool), "umfPoolCreate");
    return good(disjoint_params_destroy(params), "umfDisjointPoolParamsDestroy") && made;
  }

  void close() {
    if (pool != nullptr && pool_destroy(pool) != 0) std::fputs("gmm-bench: warning: umfPoolDestroy fails\n", stderr);
    if (provider != nullptr && provider_destroy(provider) != 0)
      std::fputs("gmm-bench: warning: umfMemoryProviderDestroy fails\n", stderr);
    pool = provider = nullptr;
  }
};

struct OnSystem : Disjoint {
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
  static constexpr bool kNeedsCuda = false;
  const void *(*ops)() = nullptr;
  Result (*params_create)(Handle *) = nullptr;
  Result (*params_destroy)(Handle) = nullptr;

  bool open(const gmm_bench_options &) {
    Handle params = nullptr;
    if (!find_functions() || !symbol(library, "umfOsMemoryProviderOps", &ops, &failure) ||
        !symbol(library, "umfOsMemoryProviderParamsCreate", &params_create, &failure) ||
        !symbol(library, "umfOsMemoryProviderParamsDestroy", &params_destroy, &failure) ||
        !good(params_create(&params), "umfOsMemoryProviderParamsCreate"))
      return false;
    const bool made = good(provider_create(ops(), params, &provider), "umfMemoryProviderCreate");
    return good(params_destroy(params), "umfOsMemoryProviderParamsDestroy") && made && make_pool();
  }
};

struct OnCuda : Disjoint {
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_HOST | 1u << GMM_BENCH_MANAGED;
  static constexpr bool kNeedsCuda = true;
  const void *(*ops)() = nullptr;
  Result (*params_create)(Handle *) = nullptr;
  Result (*params_destroy)(Handle) = nullptr;
  Result (*set_context)(Handle, void *) = nullptr;
  Result (*set_device)(Handle, int) = nullptr;
  Result (*set_memory_type)(Handle, int) = nullptr;
  Result (*device_get)(int *, int) = nullptr;
  Result (*retain_context)(void **, int) = nullptr;
  Result (*release_context)(int) = nullptr;
  int device = 0;
  void *context = nullptr;

  bool find_all() {
    if (!find_functions()) return false;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) return failure = dlerror(), false;
    return symbol(library, "umfCUDAMemoryProviderOps", &ops, &failure) &&
           symbol(library, "umfCUDAMemoryProviderParamsCreate", &params_create, &failure) &&
           symbol(library, "umfCUDAMemoryProviderParamsDestroy", &params_destroy, &failure) &&
           symbol(library, "umfCUDAMemoryProviderParamsSetContext", &set_context, &failure) &&
           symbol(library, "umfCUDAMemoryProviderParamsSetDevice", &set_device, &failure) &&
           symbol(library, "umfCUDAMemoryProviderParamsSetMemoryType", &set_memory_type, &failure) &&
           symbol(driver, "cuDeviceGet", &device_get, &failure) &&
           symbol(driver, "cuDevicePrimaryCtxRetain", &retain_context, &failure) &&
           symbol(driver, "cuDevicePrimaryCtxRelease_v2", &release_context, &failure);
  }

  // gmm has initialised the driver: a context of it found the backend out.
  bool open(const gmm_bench_options &options) {
    Handle params = nullptr;
    if (!find_all() || !good(device_get(&device, options.device), "cuDeviceGet") ||
        !good(retain_context(&context, device), "cuDevicePrimaryCtxRetain") ||
        !good(params_create(&params), "umfCUDAMemoryProviderParamsCreate"))
      return false;
    // UMF_MEMORY_TYPE_HOST, _DEVICE, _SHARED
    const int type = options.kind == GMM_BENCH_HOST ? 1 : options.kind == GMM_BENCH_DEVICE ? 2 : 3;
    const bool made = good(set_context(params, context), "umfCUDAMemoryProviderParams") &&
                      good(set_device(params, device), "umfCUDAMemoryProviderParams") &&
                      good(set_memory_type(params, type), "umfCUDAMemoryProviderParams") &&
                      good(provider_create(ops(), params, &provider), "umfMemoryProviderCreate");
    return good(params_destroy(params), "umfCUDAMemoryProviderParamsDestroy") && made && make_pool();
  }

  void close() {
    Disjoint::close();
    if (context != nullptr && release_context(device) != 0)
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
