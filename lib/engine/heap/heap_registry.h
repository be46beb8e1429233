// SPDX-License-Identifier: Apache-2.0
// Which heaps live in this process. A thread, which outlives heaps and which heaps outlive, notes its cache of a heap
// by the heap's slot and serial (base/slot_table.h). When it ends, it returns every cache whose heap still lives.
#ifndef GMM_ENGINE_HEAP_HEAP_REGISTRY_H
#define GMM_ENGINE_HEAP_HEAP_REGISTRY_H

#include "base/slot_table.h"
#include "engine/heap/heap.h"

namespace gmm {

class HeapRegistry {
 public:
  static constexpr uint32_t kSlots = 16384;

  // Gives the heap its slot and serial. NOT_SUPPORTED when all slots are taken.
  static Status add(Heap *heap);
  // Returns when no ending thread returns its cache to the heap any more.
  static void remove(Heap *heap);

  // The calling thread's cache of a heap; NULL: it has none.
  static HeapCache *find_cache(const ThreadRecord &record, const Heap &heap) {
    return static_cast<HeapCache *>(SlotTable::find(record, ThreadPart::kCaches, key_of(heap)));
  }
  // Makes room for it. False: there is no host memory.
  static bool reserve_cache(ThreadRecord *record, const Heap &heap) {
    return SlotTable::reserve(record, ThreadPart::kCaches, key_of(heap), end_caches);
  }
  // After reserve_cache().
  static void set_cache(ThreadRecord *record, const Heap &heap, HeapCache *cache) {
    SlotTable::set(record, ThreadPart::kCaches, key_of(heap), cache);
  }

 private:
  static RegistryKey key_of(const Heap &heap) { return RegistryKey{heap.fast.slot, heap.fast.serial}; }
  static void end_caches(void *table);
};

}  // namespace gmm
#endif
