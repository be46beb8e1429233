// SPDX-License-Identifier: Apache-2.0
// The runtime's functions, of a shared libcudart.
//
// cudaGetLastError() belongs to the runtime. So a failure of gmm is made the runtime's: its own function is called, and what that calls in
// the driver, which comes by driver_hooks.cpp, answers the number. The runtime then notes it as it notes every failure.
#include "preload/context.h"
#include "preload/hooks.h"
#include "preload/memory.h"
#include "preload/real.h"

using namespace gmm::preload;

namespace {

// Calls the real function with the driver failing. `undo` takes back what it did where it did not ask the driver that way.
template <class Call, class Undo>
Code fail_in_runtime(Code code, Call call, Undo undo) {
  Inside inside;
  t_thread.inject = code;
  const Code answer = call();
  t_thread.inject = kSuccess;
  if (answer != kSuccess) return answer;
  undo();
  return code;
}

// The device that the runtime would allocate on. The first call of a thread starts the device and makes its context current, as any
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
  if (runtime_device(&device) != kSuccess) return kReal;  // fails again, with its own answer
  if (route == Route::kAsync && stream_device(stream, &device) != kSuccess) return kReal;
  if (context(false) == nullptr || !context_is_cuda()) return kReal;
  return allocate(label, route, device, size, stream, out);
}

template <class Call, class Undo>
Code answer_of(const Outcome &outcome, Call call, Undo undo) {
  if (!outcome.done) {
    Inside inside;  // the driver's hooks need not ask again
    return call();
  }
  return outcome.code == kSuccess ? kSuccess : fail_in_runtime(outcome.code, call, undo);
}

Stream of_thread(Stream stream) { return stream == nullptr ? kPerThreadStream : stream; }

}  // namespace

Code cudaMalloc(void **out, size_t size) {
  return answer_of(
      take(Route::kDevice, nullptr, size, out), [&] { return GMM_PRELOAD_REAL(cudaMalloc)(out, size); },
      [&] { GMM_PRELOAD_REAL(cudaFree)
            (*out); });
}

Code cudaFree(void *memory) {
  return answer_of(
      free_idle(memory, Free::kDevice), [&] { return GMM_PRELOAD_REAL(cudaFree)(memory); }, [] {});
}

Code cudaMallocAsync(void **out, size_t size, Stream stream) {
  return answer_of(
      take(Route::kAsync, stream, size, out), [&] { return GMM_PRELOAD_REAL(cudaMallocAsync)(out, size, stream); },
      [&] { GMM_PRELOAD_REAL(cudaFreeAsync)
            (*out, stream); });
}

Code cudaMallocAsync_ptsz(void **out, size_t size, Stream stream) {
  return answer_of(
      take(Route::kAsync, of_thread(stream), size, out),
      [&] { return GMM_PRELOAD_REAL(cudaMallocAsync_ptsz)(out, size, stream); },
      [&] { GMM_PRELOAD_REAL(cudaFreeAsync_ptsz)
            (*out, stream); });
}

Code cudaFreeAsync(void *memory, Stream stream) {
  return answer_of(
      free_ordered(memory, stream), [&] { return GMM_PRELOAD_REAL(cudaFreeAsync)(memory, stream); }, [] {});
}

Code cudaFreeAsync_ptsz(void *memory, Stream stream) {
  return answer_of(
      free_ordered(memory, of_thread(stream)), [&] { return GMM_PRELOAD_REAL(cudaFreeAsync_ptsz)(memory, stream); },
      [] {});
}

Code cudaMallocManaged(void **out, size_t size, unsigned int flags) {
  return answer_of(
      flags == kAttachGlobal ? take(Route::kManaged, nullptr, size, out) : kReal,
      [&] { return GMM_PRELOAD_REAL(cudaMallocManaged)(out, size, flags); }, [&] { GMM_PRELOAD_REAL(cudaFree)
                                                                                   (*out); });
}

Code cudaMallocHost(void **out, size_t size) {
  return answer_of(
      take(Route::kHost, nullptr, size, out), [&] { return GMM_PRELOAD_REAL(cudaMallocHost)(out, size); },
      [&] { GMM_PRELOAD_REAL(cudaFreeHost)
            (*out); });
}

Code cudaHostAlloc(void **out, size_t size, unsigned int flags) {
  return answer_of((flags & kHostWriteCombined) == 0 ? take(Route::kHost, nullptr, size, out) : kReal,
                   [&] { return GMM_PRELOAD_REAL(cudaHostAlloc)(out, size, flags); },
                   [&] { GMM_PRELOAD_REAL(cudaFreeHost)
                         (*out); });
}

Code cudaFreeHost(void *memory) {
  return answer_of(
      free_idle(memory, Free::kHost), [&] { return GMM_PRELOAD_REAL(cudaFreeHost)(memory); }, [] {});
}

Code cudaStreamDestroy(Stream stream) {
  forget_stream(stream);
  Inside inside;
  return GMM_PRELOAD_REAL(cudaStreamDestroy)(stream);
}
