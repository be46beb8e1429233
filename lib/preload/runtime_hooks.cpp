// SPDX-License-Identifier: Apache-2.0
// The hooks of a shared libcudart.
//
// cudaGetLastError() belongs to the runtime, so a failure of gmm must become the runtime's. The hook calls the real
// function, and the driver calls that it makes (driver_hooks.cpp) answer with the failure. The runtime then records it
// as any failure.
#include "preload/context.h"
#include "preload/memory.h"
#include "preload/real.h"

using namespace gmm::preload;

namespace {

constexpr size_t kImpossible = SIZE_MAX / 2;

// Calls the real function while the driver's functions fail. A runtime that found the driver's functions before they
// had hooks succeeds in spite of that: then `undo` reverts the call, and if memory was short, the call requests more
// than any device has.
template <class Call, class Undo>
CUresult fail_in_runtime(CUresult code, size_t size, Call call, Undo undo) {
  Inside inside;
  t_thread.inject = code;
  CUresult answer = call(size);
  t_thread.inject = CUDA_SUCCESS;
  if (answer != CUDA_SUCCESS) return answer;
  undo();
  if (code == CUDA_ERROR_OUT_OF_MEMORY && size != 0) answer = call(kImpossible);
  return answer != CUDA_SUCCESS ? answer : code;
}

// The device on which the runtime would allocate. The first call of a thread starts the device and makes its context
// current, as any function of the runtime does. cudaFree(NULL) does nothing else.
CUresult runtime_device(int *out) {
  Inside inside;
  const Driver *entries = driver();
  int ignored = 0;
  if (entries == nullptr || entries->cuCtxGetDevice(&ignored) != CUDA_SUCCESS)
    if (CUresult code = GMM_PRELOAD_REAL(cudaFree)(nullptr); code != CUDA_SUCCESS) return code;
  GetDeviceFn *get_device = runtime_get_device();
  return get_device != nullptr ? get_device(out) : current_device(out);
}

template <class Call, class Undo>
CUresult answer_of(const Outcome &outcome, size_t size, Call call, Undo undo) {
  if (!outcome.done) {
    Inside inside;  // the driver's hooks need not check again
    return call(size);
  }
  return outcome.code == CUDA_SUCCESS ? CUDA_SUCCESS : fail_in_runtime(outcome.code, size, call, undo);
}

}  // namespace

// `allowed`: gmm serves an allocation with these parameters. `undo` frees it.
#define ALLOC(name, route, stream, allowed, undo, parameters, arguments)                              \
  CUresult name parameters {                                                                          \
    auto *real_alloc = GMM_PRELOAD_REAL(name);                                                        \
    return answer_of((allowed) ? take(Route::route, stream, size, out, runtime_device) : kReal, size, \
                     [=](size_t size) { return real_alloc arguments; }, [=] { undo; });               \
  }
ALLOC(cudaMalloc, kDevice, nullptr, true, cudaFree(*out), (void **out, size_t size), (out, size))
ALLOC(cudaMallocAsync, kAsync, stream, true, cudaFreeAsync(*out, stream), (void **out, size_t size, CUstream stream),
      (out, size, stream))
ALLOC(cudaMallocAsync_ptsz, kAsync, of_thread(stream), true, cudaFreeAsync_ptsz(*out, stream),
      (void **out, size_t size, CUstream stream), (out, size, stream))
ALLOC(cudaMallocManaged, kManaged, nullptr, flags == CU_MEM_ATTACH_GLOBAL, cudaFree(*out),
      (void **out, size_t size, unsigned int flags), (out, size, flags))
ALLOC(cudaMallocHost, kHost, nullptr, true, cudaFreeHost(*out), (void **out, size_t size), (out, size))
ALLOC(cudaHostAlloc, kHost, nullptr, (flags & CU_MEMHOSTALLOC_WRITECOMBINED) == 0, cudaFreeHost(*out),
      (void **out, size_t size, unsigned int flags), (out, size, flags))
#undef ALLOC

#define FREE(name, ours, parameters, arguments)                       \
  CUresult name parameters {                                          \
    auto *real_free = GMM_PRELOAD_REAL(name);                         \
    return answer_of(                                                 \
        ours, 0, [=](size_t) { return real_free arguments; }, [] {}); \
  }
FREE(cudaFree, free_idle(memory, Free::kDevice), (void *memory), (memory))
FREE(cudaFreeAsync, free_ordered(memory, stream), (void *memory, CUstream stream), (memory, stream))
FREE(cudaFreeAsync_ptsz, free_ordered(memory, of_thread(stream)), (void *memory, CUstream stream), (memory, stream))
FREE(cudaFreeHost, free_idle(memory, Free::kHost), (void *memory), (memory))
#undef FREE

CUresult cudaStreamDestroy(CUstream stream) {
  forget_stream(stream);
  Inside inside;
  return GMM_PRELOAD_REAL(cudaStreamDestroy)(stream);
}
