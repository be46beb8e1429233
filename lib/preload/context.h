// SPDX-License-Identifier: Apache-2.0
// The one context of the process, and its heaps: one for each label, device and kind, and apart for memory in the order of streams.
#ifndef GMM_PRELOAD_CONTEXT_H
#define GMM_PRELOAD_CONTEXT_H

#include <gmm/gmm.h>

#include <atomic>

#include "preload/region.h"

namespace gmm::preload {

inline constinit std::atomic<gmm_context *> g_context{nullptr};

// Makes it at the first call; NULL with a message. Never in a hook's way again after a failure: `retry` tries anew.
gmm_context *context(bool retry);
// Whether memory of the context is memory of the CUDA driver, so that a CUDA program can be given it.
bool context_is_cuda();

struct HeapEntry {
  gmm_device device;
  gmm_kind kind;
  bool ordered;
  gmm_heap *heap;
  HeapEntry *next;
};

// `ordered`: freed memory comes back in the order of streams. Otherwise only memory that no stream uses is freed to the heap, so that
// what comes from it may be used on every stream at once, as cudaMalloc promises. Kinds that the device lacks become DEVICE.
gmm_result heap_of(Label *label, gmm_device device, gmm_kind kind, bool ordered, gmm_heap **out);

// The label's tag, made at the first call.
gmm_result tag_of(Label *label, gmm_tag *out);

}  // namespace gmm::preload
#endif
