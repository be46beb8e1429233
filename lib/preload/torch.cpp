// SPDX-License-Identifier: Apache-2.0
// torch_memory_saver's functions for PyTorch's CUDAPluggableAllocator.
#include <new>

#include "preload/context.h"
#include "preload/memory.h"
#include "preload/preload.h"

using namespace gmm::preload;

void *tms_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT {
  if (size < 0) {
    say("The size %lld of an allocation is negative; pass a size in bytes.", static_cast<long long>(size));
    return nullptr;
  }
  if (size == 0) return nullptr;  // as cudaMalloc does
  Label *label = current_region();
  if (label == nullptr) label = label_of(config().tag, config().contents);
  if (label == nullptr || context(true) == nullptr) return nullptr;
  void *memory = nullptr;
  const Outcome outcome =
      allocate(label, Route::kDevice, device, static_cast<uint64_t>(size), static_cast<CUstream>(stream), &memory);
  if (!outcome.done) say("This process was forked from one that uses CUDA; start it by exec or spawn.");
  return memory;
}

void tms_torch_free(void *memory, ssize_t, int, gmm_preload_stream) GMM_NOEXCEPT {
  if (memory != nullptr && !free_idle(memory, Free::kDevice).done)
    say("%p was not allocated by this library; free it by the function of its own library.", memory);
}
