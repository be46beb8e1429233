// SPDX-License-Identifier: Apache-2.0
// Which heaps live in this process, by slot: the index of a heap in every thread's table. The one thing that contexts
// share, needed because a thread outlives contexts and contexts outlive threads.
#ifndef GMM_ENGINE_HEAP_HEAP_REGISTRY_H
#define GMM_ENGINE_HEAP_HEAP_REGISTRY_H

#include "base/lock.h"
#include "engine/heap/heap.h"

namespace gmm {

class HeapRegistry {
 public:
  static constexpr uint32_t kSlots = 16384;

  // Gives the heap its slot and serial. NOT_SUPPORTED when all slots are taken.
  static Status add(Heap *heap);
  static void remove(Heap *heap);
  // Held by an ending thread while it returns its caches; before every lock of a heap.
  static Mutex &mutex();
  // The heap of a slot if it is still the one with this serial; with mutex() held.
  static Heap *find(uint32_t slot, uint64_t serial);
};

}  // namespace gmm
#endif
