// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/compactor.h"

#include <algorithm>

#include "engine/heap/reclaim.h"

namespace gmm {

bool Compactor::may_compact() const {
  // Inside gmm_defer_begin() nothing goes back to the driver, not even for a moment.
  return !streams_.held_for_graph() && core_.defer_depth.load(std::memory_order_relaxed) == 0;
}

bool Compactor::begin() {
  if (!is_undisturbed()) return false;
  runs_.clear_done(streams_, policy_);
  runs_.merge_all(false);  // also neighbours that wait for nothing since earlier
  return true;
}

// The bytes that can be moved of a free run that no queued work uses.
uint64_t Compactor::movable_in(const Span *run) {
  uint64_t bytes = 0;
  if (run->streams == 0)
    extents_.for_each_in(run, [&](const Extent *extent) { bytes += may_move(*extent) ? size_of(*extent) : 0; });
  return bytes;
}

Status Compactor::step(Compaction *work, bool *more) {
  *more = false;
  if (!may_compact() || work->is_over()) return Status();
  // One extent at a time where the time counts: the driver's share of it is unknown beforehand.
  const uint64_t slice = work->has_deadline() ? 1 : kSlice;
  ReleaseRule rule;
  rule.at_most = work->bytes_left;
  rule.bounds_dedicated = true;
  uint64_t done = 0;
  Status status = reclaim_.release_locked(slice, &done, &rule);
  work->count(&work->released, done);
  *more = done != 0;
  if (!status.ok() || *more || options_.whole_regions()) return status;

  Vector<Span *> sources(core_.allocator);  // the smallest first
  uint64_t all = 0, in_largest = 0;
  Span *largest = nullptr;
  runs_.free().for_each([&](Span *run) {
    const uint64_t bytes = movable_in(run);
    if (bytes == 0 || !sources.push_back(run)) return;  // without host memory it stays where it is
    all += bytes;
    if (largest != nullptr && run->bytes() <= largest->bytes()) return;
    largest = run;
    in_largest = bytes;
  });
  if (all == in_largest) return Status();
  Target target;
  GMM_TRY(find_target(all, &target));
  bool any_other = false;
  for (uint64_t i = 0; i < sources.size() && target.hole != nullptr && done < kSlice && status.ok(); ++i) {
    if (sources[i] == target.run || sources[i] == largest) continue;
    any_other = true;
    status = move_run(sources[i], &target, work, &done);
    if (work->is_over()) break;
  }
  if (!any_other && largest != target.run && !work->has_deadline() && work->bytes_left >= in_largest)
    status = move_run(largest, &target, work, &done);
  *more = done != 0;
  return status;
}

// `all`: the bytes of free extents. The hole has room for those that do not lie in the run.
Status Compactor::find_target(uint64_t all, Target *out) {
  for (Span *hole = runs_.holes().front(); hole != nullptr; hole = runs_.holes().next(hole)) {
    if (hole->region->paused.load(std::memory_order_relaxed) != 0) continue;
    for (Span *run : {hole->before, hole->after}) {
      const bool is_run = run != nullptr && run->is(SpanState::kFree) && run->streams == 0;
      if (out->hole != nullptr && (!is_run || (out->run != nullptr && out->run->bytes() >= run->bytes()))) continue;
      if (hole->bytes() < all - (is_run ? movable_in(run) : 0)) continue;
      *out = Target{is_run ? run : nullptr, hole, is_run && run == hole->after};
    }
  }
  if (out->hole != nullptr) return Status();
  Region *fresh = nullptr;
  GMM_TRY(extents_.reserve(all, Extents::kRegionSize, &fresh));
  out->hole = fresh->first;
  runs_.list_hole(out->hole);
  return Status();
}

// From its end on, so that the rest of the run is the same span. A target without a hole is used up.
Status Compactor::move_run(Span *run, Target *target, Compaction *work, uint64_t *done) {
  for (uintptr_t begin = run->begin(), at = run->end(); at > begin;) {
    Extent *extent = core_.page_map.find_extent(at - 1);
    const uintptr_t base = base_of(*extent);
    const uint64_t size = size_of(*extent);
    const bool is_whole = base >= begin && base + size == at;
    at = base;
    if (!is_whole || !may_move(*extent) || extent->importers.load(std::memory_order_relaxed) != 0) continue;
    if (size > work->bytes_left || size > target->hole->bytes()) continue;
    GMM_TRY(move(extent, run, target));
    work->count(&work->moved, size);
    *done += size;
    // A reserve is memory that was touched.
    GMM_TRY(extents_.touch(base_of(*extent), size));
    if (target->hole == nullptr || *done >= kSlice || work->is_over()) break;
  }
  return Status();
}

Status Compactor::move(Extent *extent, Span *run, Target *target) {
  const uint64_t size = size_of(*extent);
  const bool is_used_up = size == target->hole->bytes();
  Extents::Fill fill;
  GMM_TRY(extents_.begin_fill(target->hole, target->is_behind ? target->hole->bytes() - size : 0, &fill));
  const Status status = extents_.move(extent, run, &fill);
  extents_.end_fill(fill);
  if (fill.filled == nullptr) return status;
  target->run = runs_.make_free(fill.filled);
  target->hole = is_used_up ? nullptr : target->is_behind ? target->run->before : target->run->after;
  return status;
}

// --- GMM_COMPACT_LIVE ------------------------------------------------------------------------------------------------

ByteRange Compactor::free_part(const Span &span, const Extent &extent) {
  const uintptr_t begin = Extents::rounded(std::max(span.begin(), base_of(extent)));
  const uintptr_t end = std::min(span.end(), end_of(extent)) & ~(kExtentAlignment - 1);
  return begin < end ? ByteRange{begin, end - begin} : ByteRange{begin, 0};
}

bool Compactor::may_evacuate(const Extent &extent) const {
  return may_move(extent) && extent.kept == nullptr && !is_paused(extent) &&
         extent.importers.load(std::memory_order_relaxed) == 0;
}

// An export names the extents of its block.
bool Compactor::has_exports(const Choice &choice) {
  const uintptr_t end = end_of(*choice.extent);
  for (Span *span = choice.first; span != nullptr && span->begin() < end; span = span->after) {
    if (!span->live()) continue;
    for (uint32_t i = 0; i < span->blocks(); ++i) {
      if ((span->slot(i).load(std::memory_order_relaxed) & kUsedElsewhere) == 0) continue;
      if (notes_.is_exported(reinterpret_cast<void *>(span->block(i)))) return true;
    }
  }
  return false;
}

Compactor::Choice Compactor::choose(const Compaction &work) {
  Choice best;
  const uint64_t above = reclaim_.above_reserve();
  const auto consider = [&](const Choice &choice) {
    if (choice.free_bytes == 0) return;
    const uint64_t size = size_of(*choice.extent);
    if (choice.free_bytes == size || choice.free_bytes < size / 2) return;
    if (size > work.bytes_left || choice.free_bytes > above || !may_evacuate(*choice.extent)) return;
    const bool is_better =
        best.extent == nullptr || choice.free_bytes * (size_of(*best.extent) >> 20) > best.free_bytes * (size >> 20);
    if (is_better && !has_exports(choice)) best = choice;
  };
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region)) {
    if (region->whole || region->dedicated || region->paused.load(std::memory_order_relaxed) != 0) continue;
    Choice each;
    for_each_span(*region, [&](Span &span) {
      if (span.is(SpanState::kUnbacked)) return;
      for (uintptr_t at = span.begin(); at < span.end();) {
        Extent *extent = core_.page_map.find_extent(at);
        if (extent != each.extent) {
          consider(each);
          each = Choice{extent, &span, 0};
        }
        if (is_free(span)) each.free_bytes += free_part(span, *extent).size;
        at = end_of(*extent);
      }
    });
    consider(each);
  }
  return best;
}

// Gives every free part a span of its own, in no list, and returns the pieces between them.
Status Compactor::cut(const Choice &choice, Vector<Span *> *holes, Vector<Piece> *pieces) {
  const Extent &extent = *choice.extent;
  const auto no_memory = [] {
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to take a part out of an extent.");
  };
  uintptr_t at = base_of(extent);
  const auto piece_until = [&](uintptr_t end) {
    return end == at || pieces->push_back(Piece{{at, end - at}, PhysicalHandle{}, nullptr});
  };
  for (Span *span = choice.first; span != nullptr && span->begin() < end_of(extent); span = span->after) {
    if (!is_free(*span)) continue;
    const ByteRange part = free_part(*span, extent);
    if (part.size == 0) continue;
    if (!piece_until(part.base) || !holes->reserve(holes->size() + 1)) return no_memory();
    at = part.end();
    Span *rest = nullptr;
    runs_.unlist(span);
    if (part.base != span->begin()) {
      const bool good = runs_.split(span, part.base - span->begin(), &rest);
      runs_.list(span);
      if (!good) return no_memory();
      span = rest;
    }
    holes->push_back_reserved(span);
    if (part.end() != span->end()) {
      if (!runs_.split(span, part.size, &rest)) return no_memory();
      runs_.list(rest);
    }
  }
  return piece_until(end_of(extent)) ? Status() : no_memory();
}

Status Compactor::evacuate(const Choice &choice, Compaction *work) {
  Vector<Span *> holes(core_.allocator);
  Vector<Piece> pieces(core_.allocator);
  const uint64_t size = size_of(*choice.extent);
  Status status = cut(choice, &holes, &pieces);
  if (status.ok()) status = extents_.evacuate(choice.extent, &pieces);
  for (Span *span : holes) {
    if (status.ok())
      runs_.make_hole(span);
    else
      runs_.make_free(span);
  }
  if (!status.ok()) return status;
  work->count(&work->released, choice.free_bytes);
  work->count(&work->moved, size - choice.free_bytes);
  return status;
}

}  // namespace gmm
