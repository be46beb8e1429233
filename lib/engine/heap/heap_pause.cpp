// SPDX-License-Identifier: Apache-2.0
// What a heap does for the pauser: free memory out of use and back, paused memory without blocks given up.
#include "engine/heap/heap.h"

namespace gmm {
void Heap::detach(Region &region) {
  region.paused.store(1, std::memory_order_relaxed);
  fast.has_paused.fetch_add(1, std::memory_order_seq_cst);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree)) {
      unlist_run(&span);
    } else if (span.is(SpanState::kSlab)) {
      slab_tails_ -= slab_tail(span);
      if (!span.listed) return;
      List<Span, SpanOrder>::remove(&span);
      span.listed = false;
    }
  });
}

void Heap::attach(Region &region) {
  region.paused.store(0, std::memory_order_relaxed);
  fast.has_paused.fetch_sub(1, std::memory_order_seq_cst);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree)) {
      list_run(&span);
    } else if (span.is(SpanState::kSlab)) {
      slab_tails_ += slab_tail(span);
      if (span.free_blocks == 0) return;
      slabs_[span.class_index].push_front(&span);
      span.listed = true;
    }
  });
}

// The extent is in no list, and nothing is mapped. Its object starts anew.
void Heap::end_extent(Extent *extent) {
  backups_.forget(*extent);
  extent->region.store(nullptr, std::memory_order_relaxed);
  extent->handle = PhysicalHandle{};
  extent->state.store(ExtentState::kActive, std::memory_order_relaxed);
  extent->mapped = true;
  core_.extents.put(extent);
  --extent_count_;
}

// A large block goes: what is kept of active memory is not true of its successor, and of paused memory nobody wants it back.
void Heap::forget_freed(const Span &span) {
  for (uintptr_t at = span.begin(), end = span.end(); at < end;) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr) return;
    const uintptr_t extent_end = base_of(*extent) + size_of(*extent), stop = extent_end < end ? extent_end : end;
    backups_.forget(*extent, ByteRange{at, stop - at});
    at = stop;
  }
}

void Heap::set_retaining(bool retaining) {
  if (retaining == retaining_) return;
  retaining_ = retaining;
  if (retaining)
    fast.has_paused.fetch_add(1, std::memory_order_seq_cst);
  else
    fast.has_paused.fetch_sub(1, std::memory_order_seq_cst);
}

void Heap::drop_paused_in(Span *run) {
  const uintptr_t end = run->end();
  unlist_run(run);
  for (uintptr_t at = run->begin(); run != nullptr && at < end;) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    const uintptr_t base = base_of(*extent);
    at = base + size_of(*extent);
    if (base < run->begin() || at > end || !is_paused(*extent) ||
        extent->importers.load(std::memory_order_relaxed) != 0)
      continue;
    if (!release_extent(extent, run, &run).ok()) break;  // what stays is only kept longer
  }
  if (run != nullptr) list_run(run);
}

bool Heap::drop_paused(Region &region) {
  if (kept_for_graph_) return true;
  bool wholly = true;
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent))
    wholly = wholly && is_paused(*extent);
  if (wholly) {
    // The device was synchronised before the pause, and nothing can use what is not mapped: no run waits for a stream.
    for (Span *span = region.first, *previous = nullptr; span != nullptr; previous = span, span = span->after) {
      if (!span->is(SpanState::kFree)) continue;
      span->streams = 0;
      if (previous != nullptr && previous->is(SpanState::kFree)) span = merge(previous, span);
    }
  }
  // First the list, as released runs merge with the addresses around them.
  Vector<Span *> runs(core_.allocator);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree) && !runs.push_back(&span)) return;  // it is only kept longer
  });
  for (Span *run : runs) drop_paused_in(run);
  if (!region.dedicated || !region.extents.empty()) return true;
  region.paused.store(0, std::memory_order_relaxed);
  fast.has_paused.fetch_sub(1, std::memory_order_seq_cst);
  end_region(&region);
  return false;
}

void Heap::merge_paused(Region &region) {
  // Handles of a block's own size are freed with it; else they stay small enough for single ones to go or to be moved.
  constexpr uint64_t kShared = uint64_t{128} << 20, kOwn = uint64_t{1} << 30;
  const auto may_merge = [](const Extent &extent) {
    return is_paused(extent) && extent.handle.value == 0 && !extent.mapped &&
           extent.importers.load(std::memory_order_relaxed) == 0;
  };
  const auto one_block = [&](uintptr_t first, uintptr_t last) {
    const Span *span = core_.page_map.find(reinterpret_cast<void *>(first));
    return span != nullptr && span->is(SpanState::kLarge) && span->begin() <= first && last <= span->end();
  };
  const Span *hole = region.first;
  for (uintptr_t at = region.base.load(std::memory_order_relaxed),
                 end = at + region.size.load(std::memory_order_relaxed);
       at < end;) {
    Extent *into = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (into == nullptr) {  // addresses without memory: on to where the next extent may begin
      while (hole->end() <= at) hole = hole->after;
      at = hole->end();
      continue;
    }
    const uintptr_t middle = base_of(*into) + size_of(*into);
    at = middle;
    if (middle >= end || !may_merge(*into)) continue;
    Extent *from = core_.page_map.find_extent(reinterpret_cast<void *>(middle));
    if (from == nullptr || !may_merge(*from) || !(from->location.load() == into->location.load())) continue;
    const uint64_t size = size_of(*into) + size_of(*from);
    if (size > (one_block(base_of(*into), middle + size_of(*from)) ? kOwn : kShared)) continue;
    if (!backups_.merge(*into, *from)) continue;
    List<Extent, RegionExtents>::remove(from);
    into->size.store(size, std::memory_order_relaxed);
    into->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
    core_.page_map.set_extent(base_of(*into), size, into);
    end_extent(from);
    at = base_of(*into);  // it may grow on
  }
}

}  // namespace gmm
