// SPDX-License-Identifier: Apache-2.0
// Slabs: spans that hold blocks of one small class.
//
// Owns the lists of slabs by class, which of a slab's blocks are free, and the sum of the slabs' tails: the bytes
// behind the last block, which are in no block and free again with the slab.
// Invariants: a slab is listed exactly while it has free blocks and its region is not paused. A slab whose blocks are
// all free is retired at once. tails_ counts the slabs of regions that are not paused.
// Lock: the heap's, held by the caller of every function.
// Callers: Heap, which takes the memory of a slab from the free runs and returns it there.
#ifndef GMM_ENGINE_HEAP_SLABS_H
#define GMM_ENGINE_HEAP_SLABS_H

#include <cstdint>

#include "base/list.h"
#include "engine/space/core.h"
#include "engine/space/span.h"

namespace gmm {

class Slabs : NoCopy {
 public:
  Slabs(Core &core, Heap *heap) : core_(core), heap_(heap) {}
  ~Slabs() {
    if (spare_ != nullptr) core_.slabs.put(spare_);
  }

  // A listed slab whose streams are all in `allowed`; NULL for none.
  Span *find(uint32_t class_index, uint64_t allowed);
  // The slab that was listed last, whatever its streams; NULL for none.
  Span *first(uint32_t class_index) { return lists_[class_index].front(); }
  // Makes a listed slab from the addresses of a free run that is in no list, with the run's streams. The caller puts
  // the slab into the run's place. NULL: no host memory.
  Span *make(uint32_t class_index, const Span &run);
  // Makes sure that the next make() needs neither memory nor another thread. False: it would.
  [[nodiscard]] bool has_spare() { return spare_ != nullptr || (spare_ = core_.slabs.try_take()) != nullptr; }
  // Takes up to `wanted` free blocks of a listed slab; returns how many.
  uint32_t take(Span *slab, uint32_t wanted, CacheEntry *out);
  // One block is free again; the caller has set the slab's streams. True: all blocks are free, and the caller retires
  // it.
  [[nodiscard]] bool put_back(Span *slab, const void *block);
  // The slab's addresses become a free run, and the caller ends the span.
  void retire(Span *slab);
  // There is no host memory for that run: the slab serves its class again, after the others.
  void list_last(Span *slab);

  // A slab of a region that is being paused serves no allocation until attach().
  void detach(Span *slab);
  void attach(Span *slab);
  // The heap closes, and every slab ended with its region.
  void clear() { tails_ = 0; }

  // Free bytes of listed slabs, and all tails.
  uint64_t free_bytes();

 private:
  static uint64_t tail_of(const Span &slab) {
    return slab.bytes() - uint64_t{slab.block_count.load(std::memory_order_relaxed)} * slab.block_bytes();
  }
  void list(Span *slab);
  void unlist(Span *slab);

  Core &core_;
  Heap *const heap_;
  List<Span, SpanOrder> lists_[kSmallClasses];
  SlabSpan *spare_ = nullptr;
  uint64_t tails_ = 0;
};

}  // namespace gmm
#endif
