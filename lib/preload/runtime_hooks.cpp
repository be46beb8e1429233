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
Code fail_in_runtime(Code code, size_t size, Call call, Undo undo) {
  Inside inside;
  t_thread.inject = code;
  Code answer = call(size);
  t_thread.inject = kSuccess;
  if (answer != kSuccess) return answer;
  undo();
  if (code == kOutOfMemory && size != 0) answer = call(kImpossible);
  return answer != kSuccess ? answer : code;
}

// The device on which the runtime would allocate. The first call of a thread starts the device and makes its context
// current, as any function of the runtime does. cudaFree(NULL) does nothing else.
// function of the runtime does: cudaFree(NULL) does nothing else.
Code runtime_device(int *out) {
  Inside inside;
  const Driver *entries = driver();
  int ignored = 0;
  if (entries == nullptr || entries->cuCtxGetDevice(&ignored) != kSuccess)
    if (Code code = GMM_PRELOAD_REAL(cudaFree)(nullptr); code != kSuccess) return code;
  GetDeviceFn *get_device = runtime_get_device();
  return get_device != nullptr ? get_device(out) : current_device(out);
}

Outcome take(Route route, Stream stream, uint64_t size, void **out) {
  Label *label = wanted(route);
  if (__builtin_expect(label == nullptr, 1) || out == nullptr || size == 0) return kReal;
  int device = 0;
  if (runtime_device(&device) != kSuccess) return kReal;  // the real function fails again, with its own answer
  if (route == Route::kAsync && stream_device(stream, &device) != kSuccess) return kReal;
  if (context(false) == nullptr || !context_is_cuda()) return kReal;
  return allocate(label, route, device, size, stream, out);
}

template <class Call, class Undo>
Code answer_of(const Outcome &outcome, size_t size, Call call, Undo undo) {
  if (!outcome.done) {
    Inside inside;  // the driver's hooks need not check again
    return call(size);
  }
  return outcome.code == kSuccess ? kSuccess : fail_in_runtime(outcome.code, size, call, undo);
}

template <class Call>
Code answer_of(const Outcome &outcome, Call call) {
  return answer_of(
      outcome, 0, [&](size_t) { return call(); }, [] {});
}

}  // namespace

Code cudaMalloc(void **out, size_t size) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMalloc);
  return answer_of(
      take(Route::kDevice, nullptr, size, out), size, [=](size_t bytes) { return alloc(out, bytes); },
      [=] { cudaFree(*out); });
}

Code cudaFree(void *memory) {
  auto *free = GMM_PRELOAD_REAL(cudaFree);
  return answer_of(free_idle(memory, Free::kDevice), [=] { return free(memory); });
}

Code cudaMallocAsync(void **out, size_t size, Stream stream) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocAsync);
  return answer_of(
      take(Route::kAsync, stream, size, out), size, [=](size_t bytes) { return alloc(out, bytes, stream); },
      [=] { cudaFreeAsync(*out, stream); });
}

Code cudaMallocAsync_ptsz(void **out, size_t size, Stream stream) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocAsync_ptsz);
  return answer_of(
      take(Route::kAsync, of_thread(stream), size, out), size, [=](size_t bytes) { return alloc(out, bytes, stream); },
      [=] { cudaFreeAsync_ptsz(*out, stream); });
}

Code cudaFreeAsync(void *memory, Stream stream) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeAsync);
  return answer_of(free_ordered(memory, stream), [=] { return free(memory, stream); });
}

Code cudaFreeAsync_ptsz(void *memory, Stream stream) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeAsync_ptsz);
  return answer_of(free_ordered(memory, of_thread(stream)), [=] { return free(memory, stream); });
}

Code cudaMallocManaged(void **out, size_t size, unsigned int flags) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocManaged);
  return answer_of(
      flags == kAttachGlobal ? take(Route::kManaged, nullptr, size, out) : kReal, size,
      [=](size_t bytes) { return alloc(out, bytes, flags); }, [=] { cudaFree(*out); });
}

Code cudaMallocHost(void **out, size_t size) {
  auto *alloc = GMM_PRELOAD_REAL(cudaMallocHost);
  return answer_of(
      take(Route::kHost, nullptr, size, out), size, [=](size_t bytes) { return alloc(out, bytes); },
      [=] { cudaFreeHost(*out); });
}

Code cudaHostAlloc(void **out, size_t size, unsigned int flags) {
  auto *alloc = GMM_PRELOAD_REAL(cudaHostAlloc);
  return answer_of((flags & kHostWriteCombined) == 0 ? take(Route::kHost, nullptr, size, out) : kReal, size,
                   [=](size_t bytes) { return alloc(out, bytes, flags); }, [=] { cudaFreeHost(*out); });
}

Code cudaFreeHost(void *memory) {
  auto *free = GMM_PRELOAD_REAL(cudaFreeHost);
  return answer_of(free_idle(memory, Free::kHost), [=] { return free(memory); });
}

Code cudaStreamDestroy(Stream stream) {
  forget_stream(stream);
  Inside inside;
  return GMM_PRELOAD_REAL(cudaStreamDestroy)(stream);
}
