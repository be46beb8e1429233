// SPDX-License-Identifier: Apache-2.0
// A part of a heap that works on the others: Growth, Reclaim, Compactor and PausedRegions. It owns little itself. Heap
// owns all parts, which have one lock, and calls them.
#ifndef GMM_ENGINE_HEAP_HEAP_PART_H
#define GMM_ENGINE_HEAP_HEAP_PART_H

#include "base/lock.h"
#include "engine/heap/block_notes.h"
#include "engine/heap/extents.h"
#include "engine/heap/growth_policy.h"
#include "engine/heap/heap_caches.h"
#include "engine/heap/runs.h"
#include "engine/heap/slabs.h"
#include "engine/heap/stream_order.h"

namespace gmm {

class Reclaim;

class HeapPart : NoCopy {
 public:
  explicit HeapPart(Heap &heap);

 protected:
  ~HeapPart() = default;

  Core &core_;
  const HeapOptions &options_;
  OperationLock &mutex_;
  HeapCaches &caches_;
  const Quotas &quotas_;
  const Quota &own_quota_;
  GrowthPolicy &policy_;
  Runs &runs_;
  Slabs &slabs_;
  StreamOrder &streams_;
  BlockNotes &notes_;
  Extents &extents_;
  Reclaim &reclaim_;
};

}  // namespace gmm
#endif
