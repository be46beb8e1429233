// SPDX-License-Identifier: Apache-2.0
// The addresses of a heap: how spans tile its regions, and which of them are free.
//
// Owns the regions, their spans, and three lists: free runs by size (engine/space/free_runs.h), free dedicated blocks
// that wait for their streams, and holes, which are addresses without memory.
// Invariants, whenever the lock is free: the spans of a region touch each other and cover it whole. Unbacked
// neighbours are one span. A free run is listed exactly while its region is not paused, and neighbours of the same
// streams are one run unless a stream was done in between. A function that takes a span "in no list" leaves it to the
// caller to list.
// Lock: the heap's, held by the caller of every function.
// Callers: Heap, which says which streams free memory waits for and puts memory under holes.
#ifndef GMM_ENGINE_HEAP_RUNS_H
#define GMM_ENGINE_HEAP_RUNS_H

#include <cstdint>

#include "base/list.h"
#include "base/status.h"
#include "engine/heap/growth_policy.h"
#include "engine/heap/stream_order.h"
#include "engine/space/core.h"
#include "engine/space/free_runs.h"

namespace gmm {

class Runs {
 public:
  // whole_regions: a region is one driver allocation, which goes as a whole.
  Runs(Core &core, Heap *heap, bool whole_regions) : core_(core), heap_(heap), free_(whole_regions) {}
  ~Runs();

  // --- Tiling ------------------------------------------------------------------------------------------------------
  List<Region, HeapRegions> &regions() { return regions_; }
  // A new region, which one span covers.
  void add_region(Region *region, Span *span);
  // NULL without host memory. The span is in no list and has no neighbours yet.
  Span *new_span(SpanState state, uintptr_t base, uint64_t size, Region *region);
  // Makes sure that the next `count` calls of new_span() need neither memory nor another thread. False: they would.
  [[nodiscard]] bool has_spares(uint32_t count);
  // The span is in no list, and its addresses are another span's or nobody's.
  void end_span(Span *span);
  // The region is about to end: its first span covers it, in no list, and the others end, whatever they are.
  void end_all_but_first(Region *region);
  // `by` covers the addresses of a span that ends.
  void replace(Span *span, Span *by);
  // The run keeps its first bytes, *rest takes what follows; both are in no list. False without host memory, nothing
  // changed.
  [[nodiscard]] bool split(Span *run, uint64_t first_bytes, Span **rest);
  // Neighbours of one state become one span in no list, which takes the streams of both.
  Span *merge(Span *first, Span *second);
  // The span, in no list, becomes one with each neighbour of which fn(const Span &) is true.
  template <typename Fn>
  Span *join(Span *span, Fn fn) {
    if (Span *before = span->before; before != nullptr && fn(*before)) {
      unlist(before);
      span = merge(before, span);
    }
    if (Span *after = span->after; after != nullptr && fn(*after)) {
      unlist(after);
      span = merge(span, after);
    }
    return span;
  }

  // --- Free runs and holes -----------------------------------------------------------------------------------------
  FreeRuns &free() { return free_; }
  List<Span, SpanOrder> &dedicated() { return dedicated_; }
  List<Span, SpanOrder> &holes() { return holes_; }
  void list(Span *run);
  void unlist(Span *span);
  void list_hole(Span *hole);
  // Makes a span that is in no list a free run, merged with neighbours of the same streams. Cannot fail.
  Span *make_free(Span *span);
  // Makes a span that is in no list unbacked addresses, one with those around it.
  void make_hole(Span *span);
  // any_streams: neighbours that were freed on different streams become one run that waits for all of them.
  void merge_all(bool any_streams);
  // Takes `bytes`, whole granules, out of a listed run that holds them; the rest stays free. The page map has room for
  // them, and the caller enters them.
  Status carve(Span *run, uint64_t bytes, uint64_t alignment, Span **out);
  // Whether carve() of this run needs neither memory nor another thread.
  [[nodiscard]] bool can_carve_now(const Span *run, uint64_t bytes, uint64_t alignment) {
    return has_spares(2) && core_.page_map.prepare_granules(FreeRuns::aligned_start(run, alignment), bytes, false);
  }
  // Bytes of listed free runs and of free dedicated blocks.
  uint64_t free_bytes();
  // Calls fn(Span *) for each listed free run and free dedicated block. fn may not change the lists.
  template <typename Fn>
  void for_each_free(Fn fn) {
    free_.for_each(fn);
    for (Span *run = dedicated_.front(); run != nullptr; run = dedicated_.next(run)) fn(run);
  }
  // Calls fn(Span *) for those that may hold whole extents.
  template <typename Fn>
  void for_each_with_extents(Fn fn) {
    for_each_free([&](Span *run) {
      if (run->bytes() >= kExtentAlignment || run->region->dedicated) fn(run);
    });
  }
  // Asks the streams of free runs how far they are. Memory that they have finished with is free for all, and neighbours
  // become one run. False: there was none.
  bool clear_done(StreamOrder &streams, GrowthPolicy &policy);

 private:
  void keep_spare(Span *span);
  static void link_between(Span *before, Span *span, Span *after);
  void merge_region(Region &region, bool any_streams);

  Core &core_;
  Heap *const heap_;
  FreeRuns free_;
  List<Region, HeapRegions> regions_;
  List<Span, SpanOrder> dedicated_;  // free dedicated blocks that wait for their streams
  List<Span, SpanOrder> holes_;      // unbacked addresses, those of paused regions too
  // Spans that ended, for the next, linked by `after`: blocks that come and go need one or two each time.
  // Ended spans stay under the heap's lock: before, every third replacement took the pool's lock.
  static constexpr uint32_t kSpares = 32;
  Span *spare_ = nullptr;
  uint32_t spares_ = 0;
};

}  // namespace gmm
#endif
