// SPDX-License-Identifier: Apache-2.0
// Walks over the regions and extents of a heap. The caller holds the lock of the heap.
#ifndef GMM_ENGINE_PAUSE_HEAP_WALK_H
#define GMM_ENGINE_PAUSE_HEAP_WALK_H

#include "engine/heap/heap.h"

namespace gmm {

inline void *address_of(const Extent &extent) { return reinterpret_cast<void *>(base_of(extent)); }
// Heap::detach() took the region's free memory out of use.
inline bool is_detached(const Region &region) { return region.paused.load(std::memory_order_relaxed) != 0; }

// fn(Region &) may end the region.
template <typename Fn>
void for_each_region(Heap &heap, Fn fn) {
  heap.for_each_region(fn);
}
template <typename Fn>
void for_each_extent(Region &region, Fn fn) {
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent)) fn(*extent);
}
template <typename Fn>
void for_each_extent(Heap &heap, Fn fn) {
  for_each_region(heap, [&](Region &region) { for_each_extent(region, fn); });
}

}  // namespace gmm
#endif
