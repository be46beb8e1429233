// SPDX-License-Identifier: Apache-2.0
// Free runs: how spans split, merge and are found.
#include "engine/heap/heap.h"

namespace gmm {

Span *Heap::new_span(SpanState state, uintptr_t base, uint64_t size, Region *region) {
  Span *span = spare_;
  if (span != nullptr) {
    spare_ = span->after;
    --spares_;
  } else if ((span = core_.spans.take()) == nullptr) {
    return nullptr;
  }
  span->region = region;
  span->heap.store(this, std::memory_order_relaxed);
  span->base.store(base, std::memory_order_relaxed);
  span->size.store(size, std::memory_order_relaxed);
  span->streams = 0;
  span->state.store(state, std::memory_order_release);
  return span;
}

void Heap::end_span(Span *span) {
  span->state.store(SpanState::kNone, std::memory_order_relaxed);
  span->size.store(0, std::memory_order_relaxed);
  span->slots[0].store(0, std::memory_order_relaxed);
  span->region = nullptr;
  span->streams = 0;
  if (span->is_slab_object) {
    core_.slabs.put(static_cast<SlabSpan *>(span));
  } else if (spares_ < kSpares) {
    span->after = spare_;
    spare_ = span;
    ++spares_;
  } else {
    core_.spans.put(span);
  }
}

// The run keeps its first bytes, *rest takes what follows; both are unlisted. False without host memory, nothing changed.
bool Heap::split(Span *run, uint64_t first_bytes, Span **rest) {
  Span *second = new_span(run->state.load(std::memory_order_relaxed), run->begin() + first_bytes,
                          run->bytes() - first_bytes, run->region);
  if (second == nullptr) return false;
  second->streams = run->streams;
  second->stamp = run->stamp;
  run->size.store(first_bytes, std::memory_order_relaxed);
  link_between(run, second, run->after);
  *rest = second;
  return true;
}

// The span's place in its region; NULL for the region's end.
void Heap::link_between(Span *before, Span *span, Span *after) {
  span->before = before;
  span->after = after;
  (before != nullptr ? before->after : span->region->first) = span;
  if (after != nullptr) after->before = span;
}

// Neighbours of one state become one span in no list, which takes the streams of both.
Span *Heap::merge(Span *first, Span *second) {
  first->size.store(first->bytes() + second->bytes(), std::memory_order_relaxed);
  first->streams |= second->streams;
  if (first->stamp < second->stamp) first->stamp = second->stamp;
  first->after = second->after;
  if (first->after != nullptr) first->after->before = first;
  end_span(second);
  return first;
}

void Heap::list_run(Span *run) {
  if (run->region->paused.load(std::memory_order_relaxed) != 0) return;
  if (run->region->dedicated) {
    dedicated_.push_back(run);
    run->listed = true;
  } else {
    free_.insert(run);
  }
}

void Heap::unlist_run(Span *run) {
  if (!run->listed) return;
  if (run->is(SpanState::kFree) && !run->region->dedicated) {
    free_.remove(run);
  } else {
    List<Span, SpanOrder>::remove(run);
    run->listed = false;
  }
}

void Heap::list_hole(Span *hole) {
  if (hole->region->dedicated) return;
  holes_.push_front(hole);
  hole->listed = true;
}

// Makes a span that is in no list a free run, merged with neighbours of the same streams. Cannot fail.
Span *Heap::free_run(Span *run) {
  run->state.store(SpanState::kFree, std::memory_order_relaxed);
  Span *before = run->before, *after = run->after;
  if (before != nullptr && before->is(SpanState::kFree) && before->streams == run->streams) {
    unlist_run(before);
    run = merge(before, run);
  }
  if (after != nullptr && after->is(SpanState::kFree) && after->streams == run->streams) {
    unlist_run(after);
    run = merge(run, after);
  }
  list_run(run);
  return run;
}

// any_streams (before the heap grows): neighbours that were freed on different streams become one run that waits for all of them.
void Heap::merge_all(bool any_streams) {
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region))
    if (region->paused.load(std::memory_order_relaxed) == 0 && !region->dedicated) merge_region(*region, any_streams);
}

void Heap::merge_region(Region &region, bool any_streams) {
  for (Span *span = region.first, *previous = nullptr; span != nullptr; previous = span, span = span->after) {
    if (previous != nullptr && previous->is(SpanState::kFree) && span->is(SpanState::kFree) &&
        (any_streams || previous->streams == span->streams)) {
      unlist_run(previous);
      unlist_run(span);
      span = merge(previous, span);
      list_run(span);
    }
  }
}

// The first bytes of a free run that is in no list get a span of their own. NULL without host memory, nothing changed.
Span *Heap::cut_front(Span *run, uint64_t bytes) {
  const uintptr_t begin = run->begin();
  Span *front = new_span(SpanState::kFree, begin, bytes, run->region);
  if (front == nullptr) return nullptr;
  front->streams = run->streams;
  front->stamp = run->stamp;
  run->base.store(begin + bytes, std::memory_order_relaxed);
  run->size.store(run->bytes() - bytes, std::memory_order_relaxed);
  link_between(run->before, front, run);
  return front;
}

// Takes `count` granules out of a listed run that holds them; the rest stays free. The page map has room for them and is the caller's.
Status Heap::carve(Span *run, uint64_t count, uint64_t alignment, Span **out) {
  const uintptr_t start = FreeRuns::aligned_start(run, alignment);
  const uint64_t head = start - run->begin();
  const uint64_t bytes = count * kGranule;
  if (!core_.page_map.prepare_granules(start, bytes))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  unlist_run(run);
  Span *rest = run;
  if (head != 0 && !split(run, head, &rest)) {
    list_run(run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  }
  Span *taken = rest;
  if (rest->bytes() == bytes) {
    rest = nullptr;
  } else if ((taken = cut_front(rest, bytes)) == nullptr) {
    list_run(head != 0 ? merge(run, rest) : run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  }
  if (head != 0) list_run(run);
  if (rest != nullptr) list_run(rest);
  free_.note_low();
  *out = taken;
  return Status();
}

Status Heap::find_run(uint64_t count, uint64_t alignment, StreamKey key, Effort effort, Span **out) {
  const uint64_t bit = streams_.bit_of(key), own = StreamOrder::own_of(bit);
  if (bit == 0) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember another stream.");
  // What other streams are done with is as good as own, and merges with it.
  if (streams_.known_streams() > 1 && growth_.may_ask()) settle_free();
  if (Span *run = free_.best_fit(count, alignment, own)) return carve(run, count, alignment, out);
  *out = nullptr;
  if (effort == Effort::kNoGrowth) return Status();
  if (streams_.known_streams() > 1 && settle_free())
    if (Span *run = free_.best_fit(count, alignment, own)) return carve(run, count, alignment, out);
  for (uint32_t pass = 0; pass < 2; ++pass) {
    if (pass == 1) merge_all(true);
    Span *run = free_.best_fit(count, alignment, ~uint64_t{0});
    if (run == nullptr) continue;
    MessageGuard keep;
    // A refusal (graph capture) is no failure: the heap grows instead.
    if (!streams_.put_behind(key, run->streams).ok()) continue;
    order_behind(run, bit);
    return carve(run, count, alignment, out);
  }
  Span *run = nullptr;
  GMM_TRY(grow(count, alignment, key, &run));
  return carve(run, count, alignment, out);
}

}  // namespace gmm
