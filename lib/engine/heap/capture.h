// SPDX-License-Identifier: Apache-2.0
// Allocation on a stream that is being captured into a graph.
//
// A graph runs later, and many times, on the addresses that it was captured with. So a capture heap serves an
// allocation on a captured stream: one heap for each heap and capture id (engine/context/capture_heaps.cpp). It gives
// memory to nobody outside the capture. While the graph or an executable made from it lives, the heap holds even its
// free memory in place: no trim, no move of extents, no drop at a pause. Frees find the heap by the page map, as they
// find any heap.
//
// Detection. may_be_captured() compares the stream with FastFields::last_uncaptured, which is all ones where nothing
// can be captured: on the host backend, and with GMM_CONTEXT_NO_CAPTURE. Then it asks the driver.
//
// Life. A CUDA user object of the graph holds a GraphLife. The driver's callback sets a mark and counts; it takes no
// lock. CaptureHeaps reads the count before growth, at a trim, for statistics and at an allocation in a capture.
//
// Events. gmm records nothing on a captured stream, and asks again after a record, as another thread may have begun a
// capture in between. Nobody asks a captured event how far it is before it is recorded anew. Streams of one capture
// take no memory from each other.
//
// Capture mode. Every driver call that a capture forbids runs in the relaxed mode of the thread (CaptureGuard).
//
// Lock: CaptureHeaps::mutex, before every other lock of the context. Counters are read without it.
#ifndef GMM_ENGINE_HEAP_CAPTURE_H
#define GMM_ENGINE_HEAP_CAPTURE_H

#include <atomic>
#include <cstdint>

#include "base/vector.h"
#include "engine/heap/heap.h"

namespace gmm {

// Whether a graph lives. Shared with the driver, which may let go of it after the context, even after the program's
// host allocator: it comes from malloc.
class GraphLife {
 public:
  // With one reference; NULL without host memory.
  static GraphLife *make();
  // Hands a reference to the driver.
  Status tie(Backend &backend, Device device, void *graph);
  bool over() const { return over_.load(std::memory_order_acquire); }
  void release();

  // How many graphs have ended in this process: another number means that some heap may end.
  static uint64_t ended();

 private:
  static void on_end(void *self);
  std::atomic<uint32_t> references_{1};
  std::atomic<bool> over_{false};
};

// The capture heaps of a context, and the memory of those whose graph has ended. The context makes a capture heap at
// the first allocation in a capture, and ends it when graph and memory are gone.
// Callers: the context, and Heap before it grows.
class CaptureHeaps {
 public:
  explicit CaptureHeaps(const HostAllocator &allocator);

  // Before a heap grows, without a lock: memory of graphs that are gone goes back to the driver, as far as the work is
  // done that may use it. Never waits: passes by heaps that an operation has, as a pause does.
  void release_ended();
  // As release_ended(), with `mutex` held. may_wait: for an operation that has such a heap.
  void release_ended_locked(bool may_wait = true);
  // Whether a graph ended since the last look, or a heap of one is still listed.
  bool any_ended() const;
  // Whether the heap's graph is gone, and nobody uses the heap and it holds nothing. With `mutex` held.
  static bool may_end(Heap &heap);

  Mutex mutex{LockRank::kCaptureHeaps};
  Vector<Heap *> heaps;

 private:
  std::atomic<uint64_t> seen_;      // graphs that had ended at the last look
  std::atomic<uint32_t> ended_{0};  // listed heaps whose graph was gone then
};

// Whether only the driver can say that no graph captures the stream: one comparison. False where no stream of the
// heap's backend can be captured, and for the default stream, which never is.
inline bool needs_driver(const Heap &heap, gmm_stream stream) {
  return reinterpret_cast<uintptr_t>(stream) > heap.fast.last_uncaptured;
}
// Whether an allocation on the stream must be asked about. Asks the driver where it must.
inline bool may_be_captured(const Heap &heap, gmm_stream stream) {
  return __builtin_expect(needs_driver(heap, stream), 0) &&
         heap.backend().may_be_capturing(heap.options().device, stream);
}

}  // namespace gmm
#endif
