// SPDX-License-Identifier: Apache-2.0
// Allocators for PyTorch's CUDAPluggableAllocator, and those of torch_memory_saver.
#include <new>

#include "preload/context.h"
#include "preload/memory.h"
#include "preload/preload.h"

using namespace gmm::preload;

namespace {

void *take(Route route, ssize_t size, int device, CUstream stream) {
  if (size < 0) {
    say("The size %lld of an allocation is negative; pass a size in bytes.", static_cast<long long>(size));
    return nullptr;
  }
  if (size == 0) return nullptr;  // as cudaMalloc does
  Label *label = current_region();
  if (label == nullptr) label = label_of(config().tag, config().contents);
  if (label == nullptr || context(true) == nullptr) return nullptr;
  void *memory = nullptr;
  const Outcome outcome = allocate(label, route, device, static_cast<uint64_t>(size), stream, &memory);
  if (!outcome.done) say("This process was forked from one that uses CUDA; start it by exec or spawn.");
  return memory;
}

void report(const Outcome &outcome, void *memory) {
  if (!outcome.done) say("%p was not allocated by this library; free it by the function of its own library.", memory);
}

}  // namespace

void *gmm_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT {
  return take(Route::kAsync, size, device, static_cast<CUstream>(stream));
}

void gmm_torch_free(void *memory, ssize_t, int, gmm_preload_stream stream) GMM_NOEXCEPT {
  if (memory != nullptr) report(free_ordered(memory, static_cast<CUstream>(stream)), memory);
}

void gmm_torch_record_stream(void *memory, gmm_preload_stream stream) GMM_NOEXCEPT {
  gmm_context *owner = g_context.load(std::memory_order_acquire);
  if (owner == nullptr || memory == nullptr) return;
  const gmm_result result = gmm_record_use(owner, memory, static_cast<gmm_stream>(stream));
  if (result < 0) say_gmm(result, "record_stream");
}

void *tms_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT {
  return take(Route::kDevice, size, device, static_cast<CUstream>(stream));
}

void tms_torch_free(void *memory, ssize_t, int, gmm_preload_stream) GMM_NOEXCEPT {
  if (memory != nullptr) report(free_idle(memory, Free::kDevice), memory);
}
