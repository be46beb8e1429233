// SPDX-License-Identifier: Apache-2.0
// The one context of the process and its heaps: one for each label, device, kind, and order by streams or not.
#ifndef GMM_PRELOAD_CONTEXT_H
#define GMM_PRELOAD_CONTEXT_H

#include <gmm/gmm.h>

#include <atomic>

#include "preload/region.h"

namespace gmm::preload {

inline constinit std::atomic<gmm_context *> g_context{nullptr};

// Creates the context at the first call. NULL: it failed, with a message. After a failure only a call with `retry`
// tries again, so hooks are not delayed.
gmm_context *context(bool retry);
// Whether memory of the context is memory of the CUDA driver, so a CUDA program can use it.
bool context_is_cuda();

// Sets the directory of backup files, which is copied, for the whole context. If the context exists, the setting
// applies at once or gmm refuses it. Otherwise it applies when the context is created.
gmm_result set_backup_directory(gmm_context *context, const char *directory);

struct HeapEntry {
  gmm_device device;
  gmm_kind kind;
  bool ordered;
  gmm_heap *heap;
  HeapEntry *next;
};

// `ordered`: freed memory returns in the order of streams. Otherwise a block is freed to the heap only when no stream
// uses it, so every stream may use the next block at once, as cudaMalloc promises. A kind that the device lacks becomes
// DEVICE.
gmm_result heap_of(Label *label, gmm_device device, gmm_kind kind, bool ordered, gmm_heap **out);

// Returns the label's tag, and creates it at the first call.
gmm_result tag_of(Label *label, gmm_tag *out);

}  // namespace gmm::preload
#endif
