// SPDX-License-Identifier: Apache-2.0
// The steps that resume one heap.
#include <algorithm>
#include <cinttypes>

#include "engine/pause/heap_transition.h"

namespace gmm {

Status HeapTransition::check_resume(bool *paused) {
  LockGuard guard(heap_.mutex);
  for_each_gap([&](Region &, ByteRange gap) {
    wanted_bytes_ += gap.size;
    return true;
  });
  *paused = wanted_bytes_ != 0;
  for_each_asked([&](Extent &extent) {
    if (!is_wanted(extent)) return;
    *paused = true;
    wanted_bytes_ += extent.handle.value == 0 ? size_of(extent) : 0;
  });
  return check_capture("gmm_resume()");
}

// By a resume of its kind.
bool HeapTransition::is_wanted(const Extent &extent) {
  const Region &region = *region_of(&extent);
  const bool is_freed = region.elastic && region.live_spans == 0;
  return is_paused(extent) && !is_freed && !request_.prepares() && (request_.has_ranges() || !extent.is_spare);
}

// A range takes spares whole. The pages of others go.
Status HeapTransition::end_cut_spares() {
  bool is_idle = false;
  Status status;
  for_each_asked([&](Extent &extent) {
    if (!extent.is_spare || !status.ok()) return;
    const ByteRange *begin = request_.ranges, *end = begin + request_.range_count;
    const ByteRange *next = std::upper_bound(begin, end, base_of(extent),
                                             [](uintptr_t base, const ByteRange &range) { return base < range.base; });
    if (next != begin && Extents::rounded(next[-1].end()) >= end_of(extent)) return;
    if (!is_idle) status = context_.core.backend->synchronize(device());
    is_idle = true;
    if (status.ok()) status = heap_.paused().release_spare(extent);
  });
  return status;
}

// What is queued on their streams comes before the resumed part's next use.
Status HeapTransition::order_behind_spares() {
  uint64_t streams = 0;
  for (const PlannedExtent &planned : extents_) streams |= planned.was_spare ? planned.extent->streams : 0;
  if (streams == 0) return Status();
  if (request_.is_ordered()) return heap_.paused().put_behind(request_.stream, streams);
  return context_.core.backend->synchronize(device());
}

Status HeapTransition::charge(uint64_t bytes) {
  const Quota *full = heap_.quotas().charge(bytes);
  if (full == nullptr) return Status();
  return fail(GMM_ERROR_LIMIT_EXCEEDED,
              "gmm_resume(): %" PRIu64 " bytes are needed, but a limit of %" PRIu64 " bytes is set and %" PRIu64
              " are held.",
              bytes, full->limit(), full->held());
}

// The driver's calls cost by the handle, and a handle is given back whole.
Status HeapTransition::fill_gaps() {
  constexpr uint64_t kMostOfHandle = uint64_t{64} << 20;
  // Much that cannot be had is refused before it is planned, which takes a second for a TiB.
  const uint64_t spare = context_.core.spare_bytes.load(std::memory_order_relaxed);
  const uint64_t missing = wanted_bytes_ > spare ? wanted_bytes_ - spare : 0;
  GMM_TRY(charge(missing));
  heap_.quotas().refund(missing);
  Status status = missing < Extents::kWorthAsking ? Status() : context_.core.backend->can_create(device(), missing);
  const auto fill = [&](Region &region, ByteRange gap) {
    while (gap.size != 0 && status.ok()) {
      const ByteRange part{gap.base, std::min(gap.size, kMostOfHandle)};
      Extent *extent = nullptr;
      if (!added_.reserve(added_.size() + 1))
        status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
      if (status.ok()) status = heap_.paused().add(region, part, &extent);
      if (status.ok()) added_.push_back_reserved(extent);
      gap = ByteRange{part.end(), gap.size - part.size};
    }
    return status.ok();
  };
  if (status.ok()) for_each_gap(fill);
  return status;
}

Status HeapTransition::plan_resume() {
  GMM_TRY(check_capture("gmm_resume()"));
  if (request_.has_ranges()) {
    if (!request_.prepares()) GMM_TRY(end_cut_spares());
    GMM_TRY(fill_gaps());
  } else {
    // gmm_resume_wait() must not take an extent that ends here for one that is ready.
    LockGuard ready_guard(context_.ready.mutex);
    heap_.for_each_region([&](Region &region) {
      if (is_detached(region) && heap_.paused().drop(region)) heap_.paused().merge(region);
    });
  }
  bool planned = true;
  for_each_asked([&](Extent &extent) {
    if (is_wanted(extent)) planned = planned && plan(extent);
  });
  if (request_.prepares())
    for (Extent *extent : added_) planned = planned && plan(*extent);
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
  sort_planned();
  for (PlannedExtent &each : extents_) {
    each.was_spare = each.extent->is_spare;
    if (each.was_spare) heap_.paused().take_back(*each.extent);
  }
  GMM_TRY(order_behind_spares());
  return plan_live_ranges();
}

Status HeapTransition::charge() {
  for (PlannedExtent &planned : extents_) {
    if (planned.extent->handle.value != 0) continue;
    const uint64_t size = size_of(*planned.extent);
    // Its charge moves along.
    planned.charged = !request_.prepares() && heap_.paused().reuse_spare(*planned.extent);
    if (planned.charged) continue;
    GMM_TRY(charge(size));
    planned.charged = true;
  }
  return Status();
}

Status HeapTransition::take_pages() {
  Status status = charge();
  for (uint64_t i = 0; i < extents_.size() && status.ok(); ++i) status = make_pages(*extents_[i].extent);
  if (!status.ok()) {
    undo_resume();
    return status;
  }
  // From now on they are paused extents with a handle, as a failed resume may leave them.
  for (PlannedExtent &planned : extents_) {
    if (planned.charged) heap_.paused().count(-static_cast<int64_t>(size_of(*planned.extent)));
    planned.charged = false;
  }
  heap_.quotas().note_peak();
  was_held_ = true;
  return Status();
}

Status HeapTransition::make_pages(Extent &extent) {
  if (extent.handle.value != 0) return Status();
  PhysicalHandle handle;
  GMM_TRY(create_pages(*context_.core.backend, *extent.region.load(std::memory_order_relaxed),
                       extent.location.load(std::memory_order_relaxed), size_of(extent), &handle));
  extent.handle = handle;
  return Status();
}

void HeapTransition::return_pages() {
  if (!was_held_) return;
  MessageGuard message_guard;
  for_each_extent(heap_, [&](Extent &extent) {
    if (extent.state != ExtentState::kPaused || extent.mapped || extent.handle.value == 0) return;
    if (!release_pages(extent)) return;
    heap_.quotas().refund(size_of(extent));
    heap_.paused().count(static_cast<int64_t>(size_of(extent)));
  });
}

// Neighbours are mapped by one call, so a group gets memory together. A group is not all extents: the driver clears
// memory that was just released, and the first copies run at the same time.
Status HeapTransition::back_through(uint64_t index) {
  constexpr uint64_t kMapGroup = uint64_t{256} << 20;
  if (index < next_extent_) return Status();
  const uint64_t first = next_extent_;
  uint64_t bytes = 0;
  while (next_extent_ < extents_.size() && (next_extent_ <= index || bytes < kMapGroup)) {
    const PlannedExtent &planned = extents_[next_extent_++];
    Extent &extent = *planned.extent;
    bytes += size_of(extent);
    GMM_TRY(make_pages(extent));
    const bool comes_empty = extent.kept == nullptr && planned.before != ExtentState::kUnmapped;
    if (comes_empty && !region_of(&extent)->elastic) heap_.checks().dropped();
  }
  GMM_TRY(map(first, next_extent_ - first));
  return (request_.flags & GMM_RESUME_ZERO) != 0 ? clear(first, next_extent_ - first) : Status();
}

Status HeapTransition::clear(uint64_t first, uint64_t count) {
  Backend &backend = *context_.core.backend;
  // The default stream would wait for others.
  gmm_stream stream = request_.is_ordered() ? request_.stream : GMM_STREAM_PER_THREAD;
  Status status;
  for (uint64_t i = first; i < first + count && status.ok(); ++i) {
    const PlannedExtent &planned = extents_[i];
    if (planned.extent->kept == nullptr && planned.before != ExtentState::kUnmapped)
      status = backend.fill(device(), stream, address_of(*planned.extent), 0, size_of(*planned.extent));
  }
  if (status.ok() && !request_.is_ordered()) status = backend.stream_synchronize(device(), stream);
  if (status.ok()) return status;
  MessageGuard message_guard;
  backend.synchronize(device()).ignore();  // the memory must stay until the fills have ended
  return status;
}

Status HeapTransition::restore() {
  if (parts_.empty()) {
    GMM_TRY(report(0));
    for (uint64_t i = 0; i < extents_.size(); ++i) GMM_TRY(back_through(i));
    for (const PlannedExtent &planned : extents_)
      if (!request_.prepares()) context_.ready.announce(*planned.extent);
    return Status();
  }
  BackupSteps steps = backup_steps();
  steps.before = [](void *self, uint64_t part) { return static_cast<HeapTransition *>(self)->back_through(part); };
  steps.after = [](void *of, uint64_t part) {
    HeapTransition &self = *static_cast<HeapTransition *>(of);
    self.context_.ready.announce(*self.extents_[part].extent);
    return Status();
  };
  return context_.backups.restore(device(), parts_.data(), parts_.size(), steps);
}

// A read-only tag promises the contents of its large blocks only: other memory may change before the next pause. A free
// of a small block ends no backup, so a later block at its address must not find it.
void HeapTransition::drop_outside_large_blocks() {
  heap_.for_each_region([&](Region &region) {
    for_each_span(region, [&](Span &span) {
      if (span.is(SpanState::kLarge) && span.slot(0).load(std::memory_order_relaxed) != 0) return;
      context_.backups.views.end(ByteRange{span.begin(), span.bytes()});
      context_.core.page_map.for_each_extent(span.begin(), span.end(), [&](Extent &extent) {
        if (extent.kept != nullptr && !is_paused(extent))
          context_.backups.drop(*extent.kept, ByteRange{span.begin(), span.bytes()});
        return true;
      });
    });
  });
}

void HeapTransition::forget_restored(bool retain) {
  const bool read_only = (tag().flags.load(std::memory_order_relaxed) & GMM_TAG_READ_ONLY) != 0;
  const uint64_t epoch = tag().epoch.load(std::memory_order_relaxed);
  retain = retain && tag().contents.load(std::memory_order_relaxed) != GMM_CONTENTS_FILE;
  if (read_only || retain) drop_outside_large_blocks();
  for (const PlannedExtent &planned : extents_) {
    Extent *extent = planned.extent;
    if (extent->kept != nullptr) extent->kept->is_retained = retain && !is_paused(*extent);
    if (extent->kept != nullptr && extent->kept->is_retained && !extent->kept->chunks.empty()) {
      // The program may write from now on, also if the tag is read-only at the next pause.
      if (!read_only) extent->kept->epoch = KeptContents::kNoEpoch;
      continue;
    }
    context_.backups.views.end(ByteRange{base_of(*extent), size_of(*extent)});
    if (extent->kept == nullptr || is_paused(*extent)) continue;
    if (!read_only || extent->kept->epoch != epoch || extent->kept->chunks.empty()) context_.backups.forget(*extent);
  }
}

void HeapTransition::commit_resume() {
  heap_.quotas().note_peak();
  uint64_t charged = 0;
  {
    LockGuard guard(context_.ready.mutex);
    for (const PlannedExtent &planned : extents_) {
      if (planned.charged) charged += size_of(*planned.extent);
      if (planned.charged || planned.was_spare || was_held_) moved += size_of(*planned.extent);
      if (!request_.prepares()) planned.extent->state.store(ExtentState::kActive, std::memory_order_release);
    }
  }
  heap_.paused().count(-static_cast<int64_t>(charged));
  if (!request_.prepares()) return forget_restored((request_.flags & GMM_RESUME_RETAIN) != 0);
  heap_.paused().give_back_idle();
  for (const PlannedExtent &planned : extents_) heap_.paused().give_back(*planned.extent);
}

void HeapTransition::undo_resume() {
  MessageGuard message_guard;
  Core &core = context_.core;
  bool promised = false;
  {
    LockGuard guard(context_.ready.mutex);
    for (const PlannedExtent &planned : extents_) {
      const bool stays = planned.extent->state == ExtentState::kPromised;
      promised = promised || stays;
      Region &region = *region_of(planned.extent);
      if (region.elastic && !stays && !is_paused(*planned.extent))
        region.active.fetch_sub(size_of(*planned.extent), std::memory_order_relaxed);
      planned.extent->state.store(stays ? ExtentState::kActive : planned.before, std::memory_order_release);
    }
  }
  for (const PlannedExtent &planned : extents_) {
    Extent *extent = planned.extent;
    const uint64_t size = size_of(*extent);
    if (!is_paused(*extent)) {
      if (planned.charged) {
        heap_.paused().count(-static_cast<int64_t>(size));
        moved += size;
      }
      continue;
    }
    if (planned.was_spare) {
      heap_.paused().return_spare(*extent);
      continue;
    }
    if (extent->mapped) {
      // Memory that stays mapped is mapped already for the next resume.
      if (core.backend->unmap(address_of(*extent), size).ok())
        extent->mapped = false;
      else
        core.log.write(LogLevel::kError, "A failed resume leaves memory mapped: %s", last_message());
    }
    if (planned.charged) {
      if (extent->handle.value == 0 || (!extent->mapped && release_pages(*extent)))
        heap_.quotas().refund(size);
      else
        heap_.paused().count(-static_cast<int64_t>(size));
    }
  }
  if (promised) forget_restored(false);
  for (Extent *extent : added_)
    if (is_paused(*extent)) leave_gap(*extent);
  added_.clear();
}

}  // namespace gmm
