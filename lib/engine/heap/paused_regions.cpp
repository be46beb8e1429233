// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/paused_regions.h"

namespace gmm {

void PausedRegions::detach(Region &region) {
  region.paused.store(1, std::memory_order_relaxed);
  has_paused_.fetch_add(1, std::memory_order_seq_cst);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree)) {
      runs_.unlist(&span);
    } else if (span.is(SpanState::kSlab)) {
      slabs_.detach(&span);
    }
  });
}

void PausedRegions::attach(Region &region) {
  forget(region);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree)) {
      runs_.list(&span);
    } else if (span.is(SpanState::kSlab)) {
      slabs_.attach(&span);
    }
  });
}

void PausedRegions::settle(Region &region) {
  if (keeps_detached_ || region.paused.load(std::memory_order_relaxed) == 0) return;
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent))
    if (is_paused(*extent)) return;
  attach(region);
}

Status PausedRegions::add(Region &region, ByteRange range, Extent **out) {
  GMM_TRY(extents_.add_paused(region, range, out));
  caches_.count(HeapTotals{.live_bytes = range.size});
  return Status();
}

void PausedRegions::uncount(const Extent &extent) {
  const bool is_live = region_of(&extent)->first->slot(0).load(std::memory_order_relaxed) != 0;
  if (is_live && !extent.is_spare) caches_.count(HeapTotals{.live_bytes = 0 - size_of(extent)});
}

Status PausedRegions::give_back_on(gmm_stream stream) {
  const StreamKey key = key_of_caller(stream);
  LockGuard guard(mutex_);
  given_back_on_ = streams_.bit_of_free(key, key.thread, core_.log);
  given_back_at_ = streams_.stamp();
  return streams_.wait_for_external();
}

void PausedRegions::give_back(Extent &extent) {
  extent.streams = given_back_on_;
  extent.stamp = given_back_at_;
  return_spare(extent);
}

void PausedRegions::return_spare(Extent &extent) {
  uncount(extent);
  extents_.make_spare(&extent);
}

void PausedRegions::take_back(Extent &extent) {
  extents_.take_spare(&extent);
  caches_.count(HeapTotals{.live_bytes = size_of(extent)});
}

bool PausedRegions::reuse_spare(Extent &into) {
  return extents_.reuse_spare(into, [&](const Extent &spare) {
    if (region_of(&spare)->exportable != region_of(&into)->exportable ||
        !(spare.location.load() == into.location.load()))
      return false;
    streams_.ask(spare.streams);
    return streams_.is_done(&spare);
  });
}

void PausedRegions::forget(Region &region) {
  if (region.paused.exchange(0, std::memory_order_relaxed) != 0) has_paused_.fetch_sub(1, std::memory_order_seq_cst);
}

void PausedRegions::set_retaining(bool retaining) {
  if (retaining == retaining_) return;
  retaining_ = retaining;
  if (retaining)
    has_paused_.fetch_add(1, std::memory_order_seq_cst);
  else
    has_paused_.fetch_sub(1, std::memory_order_seq_cst);
}

// Makes free neighbours of a region one run.
void PausedRegions::join_free(Region &region) {
  const auto lies_in_paused = [&](const Span &span) {
    for (uintptr_t at = span.begin(); at < span.end();) {
      const Extent *extent = core_.page_map.find_extent(at);
      if (!is_paused(*extent)) return false;
      at = base_of(*extent) + size_of(*extent);
    }
    return true;
  };
  for (Span *span = region.first, *previous = nullptr; span != nullptr; previous = span, span = span->after) {
    if (!span->is(SpanState::kFree)) continue;
    // The device was synchronised before the pause, and nothing can use memory that is not mapped: no run waits for a
    // stream.
    if (span->streams != 0 && lies_in_paused(*span)) span->streams = 0;
    if (previous != nullptr && previous->is(SpanState::kFree)) span = runs_.merge(previous, span);
  }
}

bool PausedRegions::drop(Region &region) {
  if (streams_.held_for_graph()) return true;
  join_free(region);
  // First the list, as released runs merge with the addresses around them.
  Vector<Span *> runs(core_.allocator);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree) && !runs.push_back(&span)) return;  // it goes later
  });
  for (Span *run : runs) {
    extents_.forget_contents(ByteRange{run->begin(), run->bytes()}, *run);
    uint64_t dropped = 0;
    extents_.release_if(run, &dropped, is_paused).ignore();  // what stays goes later
  }
  if (!region.whole || !region.extents.empty()) return true;
  forget(region);
  extents_.end_region(&region);
  return false;
}

void PausedRegions::merge(Region &region) {
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
    Extent *into = core_.page_map.find_extent(at);
    if (into == nullptr) {  // addresses without memory: on to where the next extent may begin
      while (hole->end() <= at) hole = hole->after;
      at = hole->end();
      continue;
    }
    const uintptr_t middle = base_of(*into) + size_of(*into);
    at = middle;
    if (middle >= end || !may_merge(*into)) continue;
    Extent *from = core_.page_map.find_extent(middle);
    if (from == nullptr || !may_merge(*from) || !(from->location.load() == into->location.load())) continue;
    const uint64_t size = size_of(*into) + size_of(*from);
    if (size > (one_block(base_of(*into), middle + size_of(*from)) ? kOwn : kShared)) continue;
    if (extents_.merge(into, from)) at = base_of(*into);  // it may grow on
  }
}

}  // namespace gmm
