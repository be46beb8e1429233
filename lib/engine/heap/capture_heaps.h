// SPDX-License-Identifier: Apache-2.0
// The capture heaps of a context (engine/heap/capture.h), and the memory of those whose graph has ended.
//
// Owns the list. The context makes a capture heap at the first allocation in a capture, and ends it when graph and
// memory are gone (engine/context/capture_heaps.cpp).
// Lock: `mutex`, before every other lock of the context. Counters are read without it.
// Callers: the context, and Heap before it grows.
#ifndef GMM_ENGINE_HEAP_CAPTURE_HEAPS_H
#define GMM_ENGINE_HEAP_CAPTURE_HEAPS_H

#include <atomic>
#include <cstdint>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/heap/heap_set.h"

namespace gmm {

class CaptureHeaps {
 public:
  CaptureHeaps(const HostAllocator &allocator, HeapSet &all_heaps);

  // Before a heap grows, without a lock: memory of graphs that are gone goes back to the driver, as far as the work is
  // done that may use it. Never waits: does nothing while others hold the heaps, as a pause does.
  void release_ended();
  // The same with `mutex` held, and in any case.
  void release_ended_locked();
  // Whether a graph ended since the last look, or a heap of one is still listed.
  bool any_ended() const;
  // Whether the heap's graph is gone, and nobody uses the heap and it holds nothing. With `mutex` held.
  static bool may_end(Heap &heap);

  Mutex mutex;
  Vector<Heap *> heaps;

 private:
  HeapSet &all_heaps_;
  std::atomic<uint64_t> seen_;        // graphs that had ended at the last look
  std::atomic<uint32_t> ended_{0};    // listed heaps whose graph was gone then
  std::atomic<uint32_t> holding_{0};  // those of them that still held something
};

}  // namespace gmm
#endif
