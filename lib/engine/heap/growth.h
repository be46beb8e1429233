// SPDX-License-Identifier: Apache-2.0
// How a heap grows: which unbacked addresses are backed for a block that no free run fits, by how much new memory, and
// by which free extents from elsewhere. GrowthPolicy (engine/heap/growth_policy.h) says how much and when.
//
// Addresses: a VMM heap reserves large regions and backs them bit by bit, so that free runs coalesce across handles and
// the end of a region grows in place. Other kinds, and heaps that are exportable, have a region for each driver
// allocation: no run straddles two. Physical memory: extents grow with the heap, since the driver's cost follows the
// number of handles. Extents are moved to other addresses when nothing fits the holes that they left.
// Lock: the heap's, held by the caller of every function but wait_to_move().
// Caller: Heap.
#ifndef GMM_ENGINE_HEAP_GROWTH_H
#define GMM_ENGINE_HEAP_GROWTH_H

#include <cstdint>

#include "engine/heap/heap_part.h"

namespace gmm {

// The use that a run is wanted for. A slab's memory comes in extents of kExtentAlignment: small blocks that survive for
// long keep one each, and not one of a size that grew with the heap. The driver's call costs little beside the many
// blocks that such an extent has.
enum class RunUse { kSlab, kBlock };

class Growth : HeapPart {
 public:
  using HeapPart::HeapPart;

  // Adds memory for a run of `bytes`, whole granules, where it takes least. *out is a listed free run that holds them,
  // with the neighbours that are free for this stream.
  Status grow(uint64_t bytes, uint64_t alignment, StreamKey key, RunUse use, Span **out);
  // A free run of its own for a dedicated block; *out is in no list.
  Status grow_dedicated(uint64_t bytes, const CommTraits *comm, Span **out);
  // Memory for gmm_heap_reserve(): the heap holds `bytes` beside its dedicated blocks, and all of them are touched. All
  // or nothing.
  Status reserve(uint64_t bytes);
  // Before a heap grows for a block, and without its lock, which this takes: waits, for a bounded time, until free
  // memory can be moved instead, where that saves much.
  void wait_to_move(uint64_t bytes);

 private:
  // The unbacked addresses that take the least memory to hold a run.
  struct Window {
    Span *hole = nullptr;
    uint64_t offset = 0;  // where in it
    uint64_t bytes = 0;   // to be backed
  };
  Status charge(uint64_t bytes, uint64_t *wanted);
  uint64_t live_peak(uint64_t bytes);
  uint64_t extent_size(uint64_t bytes, uint64_t block) const;
  // The extents of the program's choice may be larger.
  bool in_small_extents(RunUse use) const {
    return use == RunUse::kSlab && options_.minimum_extent <= kExtentAlignment;
  }
  Status begin_fill(Window *window, uint64_t bytes, Extents::Fill *fill);
  Status reserve_charged(uint64_t bytes, Span **out);
  void give_up(Span *run, uint64_t at_most);
  Status grow_by_allocation(uint64_t bytes, uint64_t step, bool dedicated, Span **out,
                            const CommTraits *comm = nullptr);
  uint64_t allocation_step() const;
  Window find_window(uint64_t bytes, uint64_t alignment, uint64_t allowed);
  [[nodiscard]] bool take_edges(const Window &window, StreamKey key);
  void move_free_extents(Extents::Fill *fill, uint64_t wanted, uint64_t block, uint64_t own, bool must);
  Span *with_neighbours(Span *run, StreamKey key);
};

}  // namespace gmm
#endif
