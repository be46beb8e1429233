// SPDX-License-Identifier: Apache-2.0
// The hooks of a shared libcudart.
//
// cudaGetLastError() belongs to the runtime, so a failure of gmm must become the runtime's. The hook calls the real
// function, and the driver calls that it makes (driver_hooks.cpp) answer with the failure. The runtime then records it
// as any failure.
#include "preload/context.h"
#include "preload/hooks.h"
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

Outcome take(Route route, CUstream stream, uint64_t size, void **out) {
  Label *label = wanted(route);
  if (__builtin_expect(label == nullptr, 1) || out == nullptr || size == 0) return kReal;
  int device = 0;
  if (runtime_device(&device) != CUDA_SUCCESS) return kReal;  // the real function fails again, with its own answer
  if (route == Route::kAsync && stream_device(stream, &device) != CUDA_SUCCESS) return kReal;
  if (context(false) == nullptr || !context_is_cuda()) return kReal;
  return allocate(label, route, device, size, stream, out);
}

template <class Call, class Undo>
CUresult answer_of(const Outcome &outcome, size_t size, Call call, Undo undo) {
  if (!outcome.done) {
    Inside inside;  // the driver's hooks need not check again
    return call(size);
  }
  return outcome.code == CUDA_SUCCESS ? CUDA_SUCCESS : fail_in_runtime(outcome.code, size, call, undo);
}

template <class Call>
CUresult answer_of(const Outcome &outcome, Call call) {
  return answer_of(
      outcome, 0, [&](size_t) { return call(); }, [] {});
}

}  // namespace

CUresult cudaMalloc(void **out, size_t size) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMalloc);
  return answer_of(
      take(Route::kDevice, nullptr, size, out), size, [=](size_t bytes) { return alloc(out, bytes); },
      [=] { cudaFree(*out); });
}

CUresult cudaFree(void *memory) {
  auto *free = GMM_PRELOAD_REAL(cudaFree);
  return answer_of(free_idle(memory, Free::kDevice), [=] { return free(memory); });
}

CUresult cudaMallocAsync(void **out, size_t size, CUstream stream) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocAsync);
  return answer_of(
      take(Route::kAsync, stream, size, out), size, [=](size_t bytes) { return alloc(out, bytes, stream); },
      [=] { cudaFreeAsync(*out, stream); });
}

CUresult cudaMallocAsync_ptsz(void **out, size_t size, CUstream stream) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocAsync_ptsz);
  return answer_of(
      take(Route::kAsync, of_thread(stream), size, out), size, [=](size_t bytes) { return alloc(out, bytes, stream); },
      [=] { cudaFreeAsync_ptsz(*out, stream); });
}

CUresult cudaFreeAsync(void *memory, CUstream stream) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeAsync);
  return answer_of(free_ordered(memory, stream), [=] { return free(memory, stream); });
}

CUresult cudaFreeAsync_ptsz(void *memory, CUstream stream) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeAsync_ptsz);
  return answer_of(free_ordered(memory, of_thread(stream)), [=] { return free(memory, stream); });
}

CUresult cudaMallocManaged(void **out, size_t size, unsigned int flags) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocManaged);
  return answer_of(
      flags == CU_MEM_ATTACH_GLOBAL ? take(Route::kManaged, nullptr, size, out) : kReal, size,
      [=](size_t bytes) { return alloc(out, bytes, flags); }, [=] { cudaFree(*out); });
}

CUresult cudaMallocHost(void **out, size_t size) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocHost);
  return answer_of(
      take(Route::kHost, nullptr, size, out), size, [=](size_t bytes) { return alloc(out, bytes); },
      [=] { cudaFreeHost(*out); });
}

CUresult cudaHostAlloc(void **out, size_t size, unsigned int flags) {
  auto *alloc = GMM_PRELOAD_REAL(cudaHostAlloc);
  return answer_of((flags & CU_MEMHOSTALLOC_WRITECOMBINED) == 0 ? take(Route::kHost, nullptr, size, out) : kReal, size,
                   [=](size_t bytes) { return alloc(out, bytes, flags); }, [=] { cudaFreeHost(*out); });
}

CUresult cudaFreeHost(void *memory) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeHost);
  return answer_of(free_idle(memory, Free::kHost), [=] { return free(memory); });
}

CUresult cudaStreamDestroy(CUstream stream) {
  forget_stream(stream);
  Inside inside;
  return GMM_PRELOAD_REAL(cudaStreamDestroy)(stream);
}
