// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap_registry.h"

namespace gmm {
namespace {

// Constant-initialised: no constructor runs at load.
constinit Mutex g_mutex{LockRank::kHeapRegistry};
constinit Heap *g_heaps[HeapRegistry::kSlots] = {};
constinit uint32_t g_next_free = 0;
constinit uint64_t g_serial = 0;

}  // namespace

Mutex &HeapRegistry::mutex() { return g_mutex; }

Status HeapRegistry::add(Heap *heap) {
  LockGuard guard(g_mutex);
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint32_t slot = (g_next_free + i) % kSlots;
    if (g_heaps[slot] != nullptr) continue;
    g_heaps[slot] = heap;
    g_next_free = slot + 1;
    heap->fast.slot = slot;
    heap->fast.serial = ++g_serial;
    return Status();
  }
  return fail(GMM_ERROR_NOT_SUPPORTED, "A process can have %u heaps, and all are in use; destroy some.", kSlots);
}

void HeapRegistry::remove(Heap *heap) {
  LockGuard guard(g_mutex);
  g_heaps[heap->fast.slot] = nullptr;
  if (heap->fast.slot < g_next_free) g_next_free = heap->fast.slot;
}

Heap *HeapRegistry::find(uint32_t slot, uint64_t serial) {
  Heap *heap = slot < kSlots ? g_heaps[slot] : nullptr;
  return heap != nullptr && heap->fast.serial == serial ? heap : nullptr;
}

}  // namespace gmm
