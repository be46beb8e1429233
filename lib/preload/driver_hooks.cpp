// SPDX-License-Identifier: Apache-2.0
// The hooks of the driver's functions. A statically linked runtime uses them too, because it looks them up in the
// driver (dlsym.cpp).
#include "preload/context.h"
#include "preload/memory.h"
#include "preload/real.h"

using namespace gmm::preload;

namespace {

// Lets gmm do the work, or the real function. The runtime's own function may have to fail: see runtime_hooks.cpp.
template <class Take, class Real>
CUresult hook(Take take, Real real) {
  if (__builtin_expect(t_thread.inject != CUDA_SUCCESS, 0)) return t_thread.inject;
  const Outcome outcome = take();
  return outcome.done ? outcome.code : real();
}

template <class Pointer>
Outcome take(Route route, CUstream stream, uint64_t size, Pointer *out) {
  void *memory = nullptr;
  const Outcome outcome = take(route, stream, size, out != nullptr ? &memory : nullptr, current_device);
  if (outcome.done && outcome.code == CUDA_SUCCESS) *out = (Pointer)memory;
  return outcome;
}

}  // namespace

// `allowed`: gmm serves an allocation with these parameters.
#define ALLOC(name, route, stream, allowed, parameters, arguments)                         \
  CUresult name parameters {                                                               \
    return hook([=] { return (allowed) ? take(Route::route, stream, size, out) : kReal; }, \
                [=] { return GMM_PRELOAD_REAL(name) arguments; });                         \
  }
ALLOC(cuMemAlloc_v2, kDevice, nullptr, true, (CUdeviceptr * out, size_t size), (out, size))
ALLOC(cuMemAllocManaged, kManaged, nullptr, flags == CU_MEM_ATTACH_GLOBAL,
      (CUdeviceptr * out, size_t size, unsigned int flags), (out, size, flags))
ALLOC(cuMemAllocAsync, kAsync, stream, true, (CUdeviceptr * out, size_t size, CUstream stream), (out, size, stream))
ALLOC(cuMemAllocAsync_ptsz, kAsync, of_thread(stream), true, (CUdeviceptr * out, size_t size, CUstream stream),
      (out, size, stream))
ALLOC(cuMemAllocHost_v2, kHost, nullptr, true, (void **out, size_t size), (out, size))
ALLOC(cuMemHostAlloc, kHost, nullptr, (flags & CU_MEMHOSTALLOC_WRITECOMBINED) == 0,
      (void **out, size_t size, unsigned int flags), (out, size, flags))
#undef ALLOC

#define FREE(name, ours, parameters, arguments)                                          \
  CUresult name parameters {                                                             \
    return hook([=] { return ours; }, [=] { return GMM_PRELOAD_REAL(name) arguments; }); \
  }
FREE(cuMemFree_v2, free_idle((void *)memory, Free::kDevice), (CUdeviceptr memory), (memory))
FREE(cuMemFreeAsync, free_ordered((void *)memory, stream), (CUdeviceptr memory, CUstream stream), (memory, stream))
FREE(cuMemFreeAsync_ptsz, free_ordered((void *)memory, of_thread(stream)), (CUdeviceptr memory, CUstream stream),
     (memory, stream))
FREE(cuMemFreeHost, free_idle(memory, Free::kHost), (void *memory), (memory))
#undef FREE

CUresult cuStreamDestroy_v2(CUstream stream) {
  forget_stream(stream);
  return GMM_PRELOAD_REAL(cuStreamDestroy_v2)(stream);
}

// --- The look-up of functions -------------------------------------------------------------------------------------

namespace {

// Puts the hook in the place of the real function that a look-up found. The look-up gives the plain answer, so
// remember_real() gets the real function of each entry. `per_thread`: the default stream where the flags name none.
CUresult replace(CUresult code, const char *name, int version, uint64_t flags, bool per_thread, void **out) {
  if (code != CUDA_SUCCESS || !config().hooks || out == nullptr || *out == nullptr || is_hook(*out)) return code;
  if ((flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM) != 0) per_thread = false;
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) per_thread = true;
  const Entry entry = find_name(name, version, per_thread);
  if (entry == Entry::kCount) return code;
  remember_real(entry, *out);
  *out = entry_info(entry).hook;
  return code;
}

constexpr int kNewest = 1 << 30;

}  // namespace

// The form of cudaGetDriverEntryPoint() with three parameters, before CUDA 12, gets an argument too many, which the
// calling conventions allow.
#define GMM_PRELOAD_LOOK_UPS(suffix, is_per_thread)                                                                   \
  CUresult cuGetProcAddress##suffix(const char *name, void **out, int version, uint64_t flags) {                      \
    return replace(GMM_PRELOAD_REAL(cuGetProcAddress##suffix)(name, out, version, flags), name, version, flags,       \
                   is_per_thread, out);                                                                               \
  }                                                                                                                   \
  CUresult cuGetProcAddress_v2##suffix(const char *name, void **out, int version, cuuint64_t flags,                   \
                                       CUdriverProcAddressQueryResult *status) {                                      \
    return replace(GMM_PRELOAD_REAL(cuGetProcAddress_v2##suffix)(name, out, version, flags, status), name, version,   \
                   flags, is_per_thread, out);                                                                        \
  }                                                                                                                   \
  CUresult cudaGetDriverEntryPoint##suffix(const char *name, void **out, unsigned long long flags, int *status) {     \
    return replace(GMM_PRELOAD_REAL(cudaGetDriverEntryPoint##suffix)(name, out, flags, status), name, kNewest, flags, \
                   is_per_thread, out);                                                                               \
  }                                                                                                                   \
  CUresult cudaGetDriverEntryPointByVersion##suffix(const char *name, void **out, unsigned int version,               \
                                                    unsigned long long flags, int *status) {                          \
    return replace(GMM_PRELOAD_REAL(cudaGetDriverEntryPointByVersion##suffix)(name, out, version, flags, status),     \
                   name, static_cast<int>(version), flags, is_per_thread, out);                                       \
  }
GMM_PRELOAD_LOOK_UPS(, false)
GMM_PRELOAD_LOOK_UPS(_ptsz, true)
