// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/resume.h"

#include <algorithm>
#include <cinttypes>

#include "engine/pause/heap_walk.h"

namespace gmm {

bool HeapResume::has_paused() {
  bool paused = false;
  for_each_extent(heap_, [&](Extent &extent) { paused = paused || is_paused(extent); });
  return paused;
}

Status HeapResume::plan(const ByteRange *range) {
  GMM_TRY(check_capture("gmm_resume()"));
  if (range == nullptr) {
    // gmm_resume_wait() must not take an extent that ends here for one that is ready.
    LockGuard ready_guard(context_.ready.mutex);
    for_each_region(heap_, [&](Region &region) {
      if (is_detached(region) && heap_.paused().drop(region)) heap_.paused().merge(region);
    });
  }
  bool planned = true;
  for_each_extent(heap_, [&](Extent &extent) {
    if (!is_paused(extent) || (range != nullptr && (end_of(extent) <= range->base || base_of(extent) >= range->end())))
      return;
    planned = planned && HeapTransition::plan(extent);
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
  sort_planned();
  const auto has_kept = [](const PlannedExtent &each) {
    return each.extent->kept != nullptr && each.before == ExtentState::kPaused;
  };
  bool any_kept = false;
  for (const PlannedExtent &each : extents_) any_kept = any_kept || has_kept(each);
  if (!any_kept) return Status();
  GMM_TRY(plan_live_ranges());
  for (uint64_t i = 0; i < parts_.size(); ++i) {
    if (has_kept(extents_[i])) continue;
    for (uint64_t k = 0; k < parts_[i].range_count; ++k) bytes_ -= parts_[i].ranges[k].size;
    parts_[i].range_count = 0;
  }
  return Status();
}

Status HeapResume::charge() {
  for (PlannedExtent &planned : extents_) {
    if (planned.extent->handle.value != 0) continue;
    const uint64_t size = size_of(*planned.extent);
    if (Quota *full = heap_.quotas().charge(size))
      return fail(GMM_ERROR_LIMIT_EXCEEDED,
                  "gmm_resume(): %" PRIu64 " bytes are needed, but a limit of %" PRIu64 " bytes is set and %" PRIu64
                  " are held.",
                  size, full->limit(), full->held());
    planned.charged = true;
  }
  return Status();
}

Status HeapResume::charge_and_hold() {
  const Status status = charge_and_make();
  if (!status.ok()) {
    uint64_t none = 0;
    undo(&none);
    return status;
  }
  // From now on they are paused extents with a handle, as a failed resume may leave them.
  for (PlannedExtent &planned : extents_) {
    if (planned.charged) heap_.paused().count(-static_cast<int64_t>(size_of(*planned.extent)));
    planned.charged = false;
  }
  has_held_ = true;
  return Status();
}

Status HeapResume::charge_and_make() {
  GMM_TRY(charge());
  for (const PlannedExtent &planned : extents_) GMM_TRY(make_pages(*planned.extent));
  return Status();
}

Status HeapResume::make_pages(Extent &extent) {
  if (extent.handle.value != 0) return Status();
  PhysicalHandle handle;
  GMM_TRY(create_pages(*context_.core.backend, *extent.region.load(std::memory_order_relaxed),
                       extent.location.load(std::memory_order_relaxed), size_of(extent), &handle));
  extent.handle = handle;
  return Status();
}

void HeapResume::let_go() {
  if (!has_held_) return;
  MessageGuard message_guard;
  for_each_extent(heap_, [&](Extent &extent) {
    if (extent.state != ExtentState::kPaused || extent.mapped || extent.handle.value == 0) return;
    if (!context_.core.backend->release(extent.handle).ok()) {
      context_.core.log.write(LogLevel::kError, "A resume that ended leaves a handle for the next one: %s",
                              last_message());
      return;
    }
    extent.handle = PhysicalHandle{};
    heap_.quotas().refund(size_of(extent));
    heap_.paused().count(static_cast<int64_t>(size_of(extent)));
  });
}

// Neighbours are mapped by one call, so a group gets memory together. A group is not all extents: the driver clears
// memory that was just released, and the first copies run at the same time.
Status HeapResume::back_through(uint64_t index) {
  constexpr uint64_t kMapGroup = uint64_t{256} << 20;
  if (index < backed_) return Status();
  const uint64_t first = backed_;
  uint64_t bytes = 0;
  while (backed_ < extents_.size() && (backed_ <= index || bytes < kMapGroup)) {
    Extent &extent = *extents_[backed_++].extent;
    bytes += size_of(extent);
    GMM_TRY(make_pages(extent));
  }
  return map(first, backed_ - first);
}

Status HeapResume::restore(HeapProgress &progress) {
  if (parts_.empty()) {
    GMM_TRY(progress.report(0));
    for (uint64_t i = 0; i < extents_.size(); ++i) GMM_TRY(back_through(i));
    for (const PlannedExtent &planned : extents_) context_.ready.announce(*planned.extent);
    return Status();
  }
  struct Steps {
    HeapResume &self;
    HeapProgress &progress;
  } user{*this, progress};
  BackupSteps steps;
  steps.user = &user;
  steps.before = [](void *of, uint64_t part) { return static_cast<Steps *>(of)->self.back_through(part); };
  steps.after = [](void *of, uint64_t part) {
    HeapResume &self = static_cast<Steps *>(of)->self;
    self.context_.ready.announce(*self.extents_[part].extent);
    return Status();
  };
  steps.progress = [](void *of, uint64_t bytes) { return static_cast<Steps *>(of)->progress.report(bytes); };
  return context_.backups.restore(heap_.options().device, parts_.data(), parts_.size(), steps);
}

// A read-only tag promises the contents of its large blocks only: other memory may change before the next pause. A free
// of a small block ends no backup, so a later block at its address must not find it.
void HeapResume::drop_outside_large_blocks() {
  for_each_region(heap_, [&](Region &region) {
    for_each_span(region, [&](Span &span) {
      if (span.is(SpanState::kLarge) && span.slot(0).load(std::memory_order_relaxed) != 0) return;
      context_.backups.views.end(ByteRange{span.begin(), span.bytes()});
      for (uintptr_t at = span.begin(); at < span.end();) {
        Extent *extent = context_.core.page_map.find_extent(reinterpret_cast<void *>(at));
        if (extent == nullptr) return;
        const uintptr_t stop = std::min(end_of(*extent), span.end());
        if (extent->kept != nullptr && !is_paused(*extent))
          context_.backups.drop(*extent->kept, ByteRange{at, stop - at});
        at = stop;
      }
    });
  });
}

void HeapResume::forget_restored(bool retain) {
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

uint64_t HeapResume::commit(bool retain) {
  uint64_t bytes = 0, held = 0;
  {
    LockGuard guard(context_.ready.mutex);
    for (const PlannedExtent &planned : extents_) {
      if (planned.charged)
        bytes += size_of(*planned.extent);
      else if (has_held_)
        held += size_of(*planned.extent);
      planned.extent->state.store(ExtentState::kActive, std::memory_order_release);
    }
  }
  heap_.paused().count(-static_cast<int64_t>(bytes));
  forget_restored(retain);
  return bytes + held;
}

void HeapResume::undo(uint64_t *bytes) {
  MessageGuard message_guard;
  Core &core = context_.core;
  bool promised = false;
  {
    LockGuard guard(context_.ready.mutex);
    for (const PlannedExtent &planned : extents_) {
      const bool stays = planned.extent->state == ExtentState::kPromised;
      promised = promised || stays;
      planned.extent->state.store(stays ? ExtentState::kActive : planned.before, std::memory_order_release);
    }
  }
  for (const PlannedExtent &planned : extents_) {
    Extent *extent = planned.extent;
    const uint64_t size = size_of(*extent);
    if (!is_paused(*extent)) {
      if (planned.charged) {
        heap_.paused().count(-static_cast<int64_t>(size));
        *bytes += size;
      }
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
      if (extent->handle.value == 0) {
        heap_.quotas().refund(size);
      } else if (!extent->mapped && core.backend->release(extent->handle).ok()) {
        extent->handle = PhysicalHandle{};
        heap_.quotas().refund(size);
      } else {
        core.log.write(LogLevel::kError, "A failed resume leaves a handle for the next one: %s", last_message());
        heap_.paused().count(-static_cast<int64_t>(size));
      }
    }
  }
  if (promised) forget_restored(false);
}

Status Resume::select_range(const ByteRange &range) {
  for (uintptr_t at = range.base; at < range.end();) {
    const Extent *extent = context_.core.page_map.find_extent(reinterpret_cast<void *>(at));
    Heap *heap = heap_of(region_of(extent));
    if (!set_.try_enter(heap))
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_range(%p, %" PRIu64 "): 0x%" PRIxPTR " is not memory of this context.",
                  reinterpret_cast<void *>(range.base), range.size, at);
    at = end_of(*extent);
    // The request has the tags of the range. Another heap may have got a part of it since.
    if (request_.names(*heap) && !heaps_.contains(*heap))
      GMM_TRY(heaps_.add(*heap));
    else
      set_.leave(*heap);
  }
  return Status();
}

Status Resume::check() {
  Status captured;  // also of heaps without paused memory: the tag is in use
  for (uint64_t i = heaps_.size(); i-- > 0;) {
    LockGuard guard(heaps_[i].heap().mutex);
    if (captured.ok()) captured = heaps_[i].check_capture("gmm_resume()");
    if (!heaps_[i].has_paused()) heaps_.erase(i);
  }
  return heaps_.size() == 0 ? Status() : captured;
}

Status Resume::take_pages_and_hold() {
  heaps_.lock();
  Status status;
  for (HeapResume *heap : heaps_) {
    if (status.ok()) status = heap->plan(nullptr);
    if (status.ok()) status = heap->charge_and_hold();
  }
  for (HeapResume *heap : heaps_) heap->forget_plan();
  heaps_.set_held(true);
  heaps_.unlock();
  if (status.ok()) status = request_.ticket->hold(request_.hold_ms);
  heaps_.set_held(false);
  if (status.ok()) return status;
  heaps_.lock();
  for (HeapResume *heap : heaps_) {
    heap->let_go();
    heap->attach_active();  // the plan gave up paused memory without a live block
    heap->heap().paused().end_empty_regions();
  }
  heaps_.unlock();
  return status;
}

Status Resume::plan_and_restore(const ByteRange *range, uint64_t *extents) {
  for (HeapResume *heap : heaps_) {
    GMM_TRY(heap->plan(range));
    progress_.add_total(heap->bytes());
    *extents += heap->extent_count();
  }
  for (HeapResume *heap : heaps_) GMM_TRY(heap->charge());
  progress_.begin();
  return ByDevice<HeapResume>(context_.core, heaps_.begin(), heaps_.size())
      .run(progress_, [](HeapResume &heap, HeapProgress &of) { return heap.restore(of); });
}

Status Resume::run(const ByteRange *range, WatchCalls &calls, uint64_t *bytes) {
  *bytes = 0;
  context_.core.deferred_release.retry(*context_.core.backend);  // mappings that stand where memory comes back
  GMM_TRY(range == nullptr ? heaps_.add_from_set([&](const Heap &heap) { return request_.names(heap); })
                           : select_range(*range));
  GMM_TRY(check());
  calls.select([&](const WatchTarget &target) { return heaps_.touches(target, true, range); });
  calls.reach_all();
  if (request_.holds()) GMM_TRY(take_pages_and_hold());
  heaps_.lock();
  uint64_t extents = 0;
  const Status status = plan_and_restore(range, &extents);
  for (HeapResume *heap : heaps_) {
    if (status.ok())
      *bytes += heap->commit((request_.flags & GMM_RESUME_RETAIN) != 0);
    else
      heap->undo(bytes);
    if (!status.ok()) heap->let_go();
    heap->attach_active();
    heap->heap().paused().end_empty_regions();
  }
  if (!status.ok()) return status;
  if (extents == 0) return remark(GMM_UNCHANGED, "gmm_resume(): no memory of these tags was paused.");
  return Status();
}

}  // namespace gmm
