// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap_registry.h"

namespace gmm {
namespace {

// Constant-initialised: no constructor runs at load.
constinit Registry::Place g_heap_places[HeapRegistry::kSlots] = {};
constinit Registry g_heaps{g_heap_places, HeapRegistry::kSlots};

}  // namespace

Status HeapRegistry::add(Heap *heap) {
  RegistryKey key;
  if (!g_heaps.add(heap, &key))
    return fail(GMM_ERROR_NOT_SUPPORTED, "A process can have %u heaps, and all are in use; destroy some.", kSlots);
  heap->fast.slot = key.slot;
  heap->fast.serial = key.serial;
  return Status();
}

void HeapRegistry::remove(Heap *heap) { g_heaps.remove(key_of(*heap)); }

void HeapRegistry::end_caches(void *table) {
  SlotTable::take(table, g_heaps, [](void *heap, void *cache) {
    static_cast<Heap *>(heap)->caches().end_of_thread(*static_cast<HeapCache *>(cache));
  });
}

}  // namespace gmm
