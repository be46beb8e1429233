// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/compactor.h"

#include <algorithm>

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

// Of a free run that no queued work uses.
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
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at - 1));
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
  fill.hole = target->hole;
  runs_.unlist(fill.hole);
  if (target->is_behind && !is_used_up) {
    const bool good = runs_.split(target->hole, target->hole->bytes() - size, &fill.hole);
    runs_.list_hole(target->hole);
    if (!good) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  }
  const Status status = extents_.move(extent, run, &fill);
  // What is left of the hole is listed already where the extent lay right behind it: both became one.
  if (fill.hole != nullptr && !fill.hole->listed) runs_.make_hole(fill.hole);
  if (fill.filled == nullptr) return status;
  target->run = runs_.make_free(fill.filled);
  target->hole = is_used_up ? nullptr : target->is_behind ? target->run->before : target->run->after;
  return status;
}

}  // namespace gmm
