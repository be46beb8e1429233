// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/runs.h"

#include <bit>

namespace gmm {

Runs::~Runs() {
  while (spare_ != nullptr) {
    Span *span = spare_;
    spare_ = span->after;
    core_.spans.put(span);
  }
}

void Runs::add_region(Region *region, Span *span) {
  link_between(nullptr, span, nullptr);
  regions_.push_back(region);
}

void Runs::replace(Span *span, Span *by) {
  link_between(span->before, by, span->after);
  end_span(span);
}

uint64_t Runs::free_bytes() {
  uint64_t bytes = free_.bytes();
  for (Span *run = dedicated_.front(); run != nullptr; run = dedicated_.next(run))
    bytes += run->region->elastic ? run->region->active.load(std::memory_order_relaxed) : run->bytes();
  return bytes;
}

bool Runs::clear_done(StreamOrder &streams, GrowthPolicy &policy) {
  uint64_t bits = 0;
  free_.for_each([&](Span *run) { bits |= run->streams; });
  if (bits == 0) return false;
  policy.questions.spend(std::popcount(bits) * GrowthPolicy::kQuestionCost);
  streams.ask(bits);
  bool any = false;
  free_.for_each([&](Span *run) {
    const uint64_t done = streams.done(run->streams, run->stamp);
    run->streams &= ~done;
    any = any || done != 0;
  });
  if (any) merge_all(false);
  return any;
}

void Runs::end_all_but_first(Region *region) {
  Span *first = region->first;
  for (Span *span = first->after, *next; span != nullptr; span = next) {
    next = span->after;
    unlist(span);
    end_span(span);
  }
  first->after = nullptr;
  unlist(first);
  first->size.store(region->size.load(std::memory_order_relaxed), std::memory_order_relaxed);
  region->live_spans = 0;
}

Span *Runs::new_span(SpanState state, uintptr_t base, uint64_t size, Region *region) {
  Span *span = spare_;
  if (span != nullptr) {
    spare_ = span->after;
    --spares_;
  } else if ((span = core_.spans.take()) == nullptr) {
    return nullptr;
  }
  span->region = region;
  span->heap.store(heap_, std::memory_order_relaxed);
  span->base.store(base, std::memory_order_relaxed);
  span->size.store(size, std::memory_order_relaxed);
  span->streams = 0;
  span->state.store(state, std::memory_order_release);
  return span;
}

bool Runs::has_spares(uint32_t count) {
  while (spares_ < count) {
    Span *span = core_.spans.try_take();
    if (span == nullptr) return false;
    keep_spare(span);
  }
  return true;
}

void Runs::keep_spare(Span *span) {
  span->after = spare_;
  spare_ = span;
  ++spares_;
}

void Runs::end_span(Span *span) {
  span->state.store(SpanState::kNone, std::memory_order_relaxed);
  span->size.store(0, std::memory_order_relaxed);
  span->slots[0].store(0, std::memory_order_relaxed);
  span->region = nullptr;
  span->streams = 0;
  if (span->is_slab_object) {
    core_.slabs.put(static_cast<SlabSpan *>(span));
  } else if (spares_ < kSpares) {
    keep_spare(span);
  } else {
    core_.spans.put(span);
  }
}

bool Runs::split(Span *run, uint64_t first_bytes, Span **rest) {
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
void Runs::link_between(Span *before, Span *span, Span *after) {
  span->before = before;
  span->after = after;
  (before != nullptr ? before->after : span->region->first) = span;
  if (after != nullptr) after->before = span;
}

Span *Runs::merge(Span *first, Span *second) {
  first->size.store(first->bytes() + second->bytes(), std::memory_order_relaxed);
  first->streams |= second->streams;
  if (first->stamp < second->stamp) first->stamp = second->stamp;
  first->after = second->after;
  if (first->after != nullptr) first->after->before = first;
  end_span(second);
  return first;
}

void Runs::list(Span *run) {
  if (run->region->paused.load(std::memory_order_relaxed) != 0) return;
  if (run->region->dedicated) {
    dedicated_.push_back(run);
    run->listed = true;
  } else {
    free_.insert(run);
  }
}

void Runs::unlist(Span *run) {
  if (!run->listed) return;
  if (run->is(SpanState::kFree) && !run->region->dedicated) {
    free_.remove(run);
  } else {
    List<Span, SpanOrder>::remove(run);
    run->listed = false;
  }
}

void Runs::list_hole(Span *hole) {
  if (hole->region->dedicated) return;
  holes_.push_front(hole);
  hole->listed = true;
}

Span *Runs::make_free(Span *span) {
  span->state.store(SpanState::kFree, std::memory_order_relaxed);
  const uint64_t streams = span->streams;
  Span *run = join(span, [streams](const Span &each) { return each.is(SpanState::kFree) && each.streams == streams; });
  list(run);
  return run;
}

void Runs::make_hole(Span *span) {
  span->state.store(SpanState::kUnbacked, std::memory_order_relaxed);
  span->streams = 0;
  list_hole(join(span, [](const Span &each) { return each.is(SpanState::kUnbacked); }));
}

void Runs::merge_all(bool any_streams) {
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region))
    if (region->paused.load(std::memory_order_relaxed) == 0 && !region->dedicated) merge_region(*region, any_streams);
}

void Runs::merge_region(Region &region, bool any_streams) {
  for (Span *span = region.first, *previous = nullptr; span != nullptr; previous = span, span = span->after) {
    if (previous != nullptr && previous->is(SpanState::kFree) && span->is(SpanState::kFree) &&
        (any_streams || previous->streams == span->streams)) {
      unlist(previous);
      unlist(span);
      span = merge(previous, span);
      list(span);
    }
  }
}

Status Runs::carve(Span *run, uint64_t bytes, uint64_t alignment, Span **out) {
  const uintptr_t start = FreeRuns::aligned_start(run, alignment);
  const uint64_t head = start - run->begin();
  if (!core_.page_map.prepare_granules(start, bytes))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  unlist(run);
  Span *rest = run;
  if (head != 0 && !split(run, head, &rest)) {
    list(run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  }
  Span *taken = rest;
  rest = nullptr;
  if (taken->bytes() != bytes && !split(taken, bytes, &rest)) {
    list(head != 0 ? merge(run, taken) : run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a block.");
  }
  if (head != 0) list(run);
  if (rest != nullptr) list(rest);
  free_.note_low();
  *out = taken;
  return Status();
}

}  // namespace gmm
