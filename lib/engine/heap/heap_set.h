// SPDX-License-Identifier: Apache-2.0
// The heaps of a context, for the features that go through all of them.
#ifndef GMM_ENGINE_HEAP_HEAP_SET_H
#define GMM_ENGINE_HEAP_HEAP_SET_H

#include <gmm/stats.h>

#include "base/vector.h"
#include "engine/heap/heap.h"

namespace gmm {

struct HeapSet {
  explicit HeapSet(const HostAllocator &allocator) : heaps(allocator) {}
  Mutex mutex;  // before every lock of a heap
  Vector<Heap *> heaps;

  // With `mutex` taken inside. fn(Heap &) -> Status; the first failure ends it.
  template <typename Fn>
  Status for_each(const gmm_scope_desc &scope, Fn fn) {
    LockGuard guard(mutex);
    for (Heap *heap : heaps)
      if (in_scope(*heap, scope)) GMM_TRY(fn(*heap));
    return Status();
  }
  // With `mutex` held.
  void remove(const Heap *heap) {
    for (uint64_t i = 0; i < heaps.size(); ++i)
      if (heaps[i] == heap) return heaps.erase(i);
  }
  static bool in_scope(const Heap &heap, const gmm_scope_desc &scope) {
    const HeapOptions &options = heap.options();
    if ((scope.flags & GMM_SCOPE_DEVICE) != 0 && options.device.ordinal != scope.device) return false;
    if ((scope.flags & GMM_SCOPE_TAG) != 0 && options.tag != scope.tag) return false;
    return (scope.flags & GMM_SCOPE_KIND) == 0 || options.kind == static_cast<Kind>(scope.kind);
  }
};

}  // namespace gmm
#endif
