// SPDX-License-Identifier: Apache-2.0
// Allocation on a stream that is being captured into a graph.
//
// A graph runs later, and many times, on the addresses that it was captured with. So an allocation in a capture is served by a capture
// heap, a heap of its own for each heap and capture (engine/context/capture_heaps.cpp). Its memory is given to nobody outside of the capture and never
// back to the driver while the graph, or an executable made from it, lives. The driver tells that end through a user object of the graph.
#ifndef GMM_ENGINE_HEAP_CAPTURE_H
#define GMM_ENGINE_HEAP_CAPTURE_H

#include <atomic>
#include <cstdint>

#include "engine/heap/heap.h"

namespace gmm {

// Whether a graph lives. Shared with the driver, which may let go of it after the context, even after the program's host
// allocator: it comes from malloc.
class GraphLife {
 public:
  // With one reference; NULL without host memory.
  static GraphLife *make();
  // Hands a reference to the driver.
  Status tie(Backend &backend, Device device, void *graph);
  bool over() const { return over_.load(std::memory_order_acquire); }
  void release();

  // How many graphs have ended in this process: another number says that it is worth to look.
  static uint64_t ended();

 private:
  static void on_end(void *self);
  std::atomic<uint32_t> references_{1};
  std::atomic<bool> over_{false};
};

// Whether an allocation must be asked about: one comparison where no stream of the heap's backend can be captured, and for the
// default stream, which never is. A driver call otherwise.
inline bool may_be_captured(const Heap &heap, gmm_stream stream) {
  return __builtin_expect(reinterpret_cast<uintptr_t>(stream) > heap.fast.last_uncaptured, 0) &&
         heap.backend().may_be_capturing(heap.options().device, stream);
}

}  // namespace gmm
#endif
