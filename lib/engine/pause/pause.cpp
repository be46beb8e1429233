// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/pause.h"

#include <cinttypes>

#include "engine/pause/foreign_bytes.h"
#include "engine/pause/heap_walk.h"

namespace gmm {

Status HeapPause::check(uint32_t flags, bool *active) {
  LockGuard guard(heap_.mutex);
  GMM_TRY(check_capture("gmm_pause()"));
  bool unmapped = false;
  uint32_t importers = 0;
  *active = false;
  for_each_extent(heap_, [&](Extent &extent) {
    unmapped = unmapped || extent.state == ExtentState::kUnmapped;
    *active = *active || !is_paused(extent) || extent.handle.value != 0;
    if (!is_paused(extent)) importers += other_importers(extent);
  });
  if (unmapped)
    return fail(GMM_ERROR_BUSY,
                "gmm_pause(): a failure left memory of tag \"%s\" unmapped with its contents; call gmm_resume() first.",
                tag().name);
  return check_importers(importers, flags);
}

Status HeapPause::check_importers(uint32_t importers, uint32_t flags) {
  if (importers == 0 || (flags & GMM_PAUSE_FORCE) != 0) return Status();
  return fail(GMM_ERROR_BUSY,
              "gmm_pause(): importers hold memory of tag \"%s\"; let them close it, or pass GMM_PAUSE_FORCE.",
              tag().name);
}

Status HeapPause::detach() {
  {
    LockGuard guard(heap_.mutex);
    // Memory that was freed since earlier pauses would use up the addresses, as allocations go to new regions after
    // each.
    give_up_freed(heap_, context_.ready);
    for_each_region(heap_, [&](Region &region) {
      if (!is_detached(region) && !region.extents.empty()) heap_.paused().detach(region);
    });
    heap_.paused().keep_detached(true);
  }
  GMM_TRY(heap_.drain_caches(true));
  return heap_.paused().wait_for_device();
}

bool HeapPause::ensure_kept(Extent &extent) {
  const HostAllocator &allocator = context_.core.allocator;
  const uint64_t epoch = tag().epoch.load(std::memory_order_relaxed);
  if (extent.kept != nullptr && extent.kept->is_retained && extent.kept->epoch != epoch) {
    context_.backups.end_retained(extent);
    extent.kept->epoch = epoch;
  }
  if (extent.kept != nullptr && extent.kept->epoch != epoch) context_.backups.forget(extent);
  if (extent.kept != nullptr) return true;
  extent.kept = allocator.create<KeptContents>(allocator);
  if (extent.kept == nullptr) return false;
  extent.kept->epoch = epoch;
  return true;
}

Status HeapPause::plan(uint32_t flags) {
  contents_ = tag().contents.load(std::memory_order_relaxed);
  if ((flags & GMM_PAUSE_DROP) != 0) contents_ = GMM_CONTENTS_DROP;
  if ((flags & GMM_PAUSE_KEEP_HOST) != 0) contents_ = GMM_CONTENTS_HOST;
  if ((flags & GMM_PAUSE_KEEP_FILE) != 0) contents_ = GMM_CONTENTS_FILE;
  const bool drops = contents_ == GMM_CONTENTS_DROP;
  bool planned = true;
  uint32_t importers = 0;
  for_each_region(heap_, [&](Region &region) {
    if (!is_detached(region)) return;
    for_each_extent(region, [&](Extent &extent) {
      if (!is_paused(extent)) importers += other_importers(extent);
      planned = planned && (is_paused(extent) || ((drops || ensure_kept(extent)) && HeapTransition::plan(extent)));
    });
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
  // Some may have come while the pause waited for the device.
  GMM_TRY(check_importers(importers, flags));
  sort_planned();
  return drops ? Status() : plan_live_ranges();
}

Status HeapPause::unmap_planned(uint64_t first, uint64_t count) {
  const Status status = unmap(first, count);
  if (status.ok() || !has_kept_) return status;
  for (uint64_t i = first; i < first + count; ++i)
    extents_[i].extent->state.store(ExtentState::kUnmapped, std::memory_order_release);
  return Status();
}

Status HeapPause::unmap_through(uint64_t index) {
  constexpr uint64_t kUnmapGroup = uint64_t{512} << 20;
  uint64_t bytes = 0;
  for (uint64_t i = offered_; i <= index; ++i) bytes += size_of(*extents_[i].extent);
  if (bytes < kUnmapGroup && index + 1 != extents_.size()) return Status();
  const uint64_t first = offered_;
  offered_ = index + 1;
  return unmap_planned(first, index + 1 - first);
}

Status HeapPause::save(HeapProgress &progress) {
  if (contents_ == GMM_CONTENTS_DROP) {
    GMM_TRY(progress.report(0));
    return unmap_planned(0, extents_.size());
  }
  GMM_TRY(copy_out(progress, true));
  saved_ = true;
  return Status();
}

Status HeapPause::copy_out(HeapProgress &progress, bool unmaps) {
  struct Steps {
    HeapPause &self;
    HeapProgress &progress;
  } user{*this, progress};
  BackupSteps steps;
  steps.user = &user;
  steps.pass = next_pass_;
  if (unmaps) steps.after = [](void *of, uint64_t part) { return static_cast<Steps *>(of)->self.unmap_through(part); };
  steps.progress = [](void *of, uint64_t bytes) { return static_cast<Steps *>(of)->progress.report(bytes); };
  return context_.backups.save(heap_.options().device, contents_, tag().flags.load(std::memory_order_relaxed),
                               parts_.data(), parts_.size(), steps);
}

Status HeapPause::keep(uint32_t flags, HeapProgress &progress) {
  has_kept_ = true;
  const bool is_written =
      (flags & GMM_PAUSE_NO_WRITES) == 0 && (tag().flags.load(std::memory_order_relaxed) & GMM_TAG_READ_ONLY) == 0;
  next_pass_ = is_written ? SavePass::kAhead : SavePass::kOnly;
  if (contents_ == GMM_CONTENTS_DROP) return progress.report(0);
  GMM_TRY(copy_out(progress, false));
  if (is_written) next_pass_ = SavePass::kAgain;
  return Status();
}

uint64_t HeapPause::commit() {
  const Core &core = context_.core;
  ForeignBytes foreign(*core.backend, heap_);
  uint64_t bytes = 0;
  for_each_extent(heap_, [&](Extent &extent) {
    if (!is_paused(extent)) return;
    extent.state.store(ExtentState::kPaused, std::memory_order_release);
    if (extent.mapped) {  // a failed resume could not unmap it
      if (!core.backend->unmap(address_of(extent), size_of(extent)).ok()) return;
      extent.mapped = false;
    }
    if (extent.handle.value == 0) return;
    foreign.before(extent);
    if (!core.backend->release(extent.handle).ok()) {
      context_.core.log.write(LogLevel::kError,
                              "A handle could not be released; the next pause or resume goes on with it: %s",
                              last_message());
      return;
    }
    extent.handle = PhysicalHandle{};
    foreign.released(extent);
    extent.is_out.store(false, std::memory_order_relaxed);
    bytes += size_of(extent);
  });
  for (const PlannedExtent &planned : extents_) {
    Extent *extent = planned.extent;
    extent->region.load(std::memory_order_relaxed)->generation.fetch_add(1, std::memory_order_relaxed);
    if (extent->kept != nullptr && (contents_ == GMM_CONTENTS_DROP || extent->kept->chunks.empty()))
      context_.backups.forget(*extent);
  }
  // The program writes anew what it dropped, and cannot tell which part of a read-only tag that was.
  if (contents_ == GMM_CONTENTS_DROP && !extents_.empty()) tag().epoch.fetch_add(1, std::memory_order_relaxed);
  heap_.quotas().refund(bytes);
  heap_.paused().count(static_cast<int64_t>(bytes));
  tag().pauses.fetch_add(1, std::memory_order_relaxed);
  const uint64_t stays = bytes == 0 ? 0 : foreign.end();
  heap_.paused().set_foreign_bytes(stays);
  if (stays != 0)
    core.log.write(
        LogLevel::kInfo,
        "gmm_pause(): %" PRIu64
        " bytes of tag \"%s\" did not return to device %d: others hold them, by a descriptor, an import or a "
        "registration.",
        stays, tag().name, heap_.options().device.ordinal);
  return bytes - foreign.believed();
}

void HeapPause::undo() {
  MessageGuard message_guard;
  for (uint64_t i = 0; i < extents_.size(); ++i) {
    Extent &extent = *extents_[i].extent;
    if (!extent.mapped && !map(i, 1).ok())
      context_.core.log.write(LogLevel::kError, "A failed pause could not map memory again; a resume does: %s",
                              last_message());
    extent.state.store(extent.mapped ? ExtentState::kActive : ExtentState::kUnmapped, std::memory_order_release);
    if (saved_) context_.backups.drop_saved(extent);
  }
  for_each_extent(heap_, [&](Extent &extent) {
    if (extent.kept != nullptr && extent.kept->chunks.empty()) context_.backups.drop_saved(extent);
  });
  if (has_kept_) drop_kept();
}

void HeapPause::drop_kept() {
  for_each_extent(heap_, [&](Extent &extent) {
    if (!is_paused(extent)) context_.backups.drop_saved(extent);
  });
}

Status Pause::select() {
  GMM_TRY(heaps_.add_from_set([&](const Heap &heap) { return request_.names(heap); }));
  for (uint64_t i = heaps_.size(); i-- > 0;) {
    bool active = false;
    GMM_TRY(heaps_[i].check(request_.flags, &active));
    if (!active) heaps_.erase(i);
  }
  return Status();
}

Status Pause::detach() {
  for (HeapPause *heap : heaps_) GMM_TRY(heap->detach());
  return Status();
}

Status Pause::tell_losing(WatchCalls &calls) {
  if (!calls.any()) return Status();
  calls.losing();
  for (HeapPause *heap : heaps_) GMM_TRY(context_.core.backend->synchronize(heap->heap().options().device));
  return Status();
}

Status Pause::keep_and_hold() {
  heaps_.lock();
  Status status;
  for (HeapPause *heap : heaps_) {
    if (status.ok()) status = heap->plan(request_.flags);
    progress_.add_total(heap->bytes());
  }
  progress_.begin();
  if (status.ok())
    status = by_device().run(
        progress_, [this](HeapPause &heap, HeapProgress &progress) { return heap.keep(request_.flags, progress); });
  for (HeapPause *heap : heaps_) {
    heap->forget_plan();
    heap->heap().paused().refuse_importers();
  }
  heaps_.set_held(true);
  heaps_.unlock();
  if (status.ok()) status = request_.ticket->hold(request_.hold_ms);
  heaps_.set_held(false);
  if (!status.ok() || (request_.flags & GMM_PAUSE_NO_WRITES) != 0) return status;
  for (HeapPause *heap : heaps_) GMM_TRY(context_.core.backend->synchronize(heap->heap().options().device));
  return status;
}

Status Pause::plan_and_save(TransitionProgress &progress, bool *any) {
  for (HeapPause *heap : heaps_) {
    GMM_TRY(heap->plan(request_.flags));
    progress.add_total(heap->bytes());
    *any = *any || heap->extent_count() != 0;
  }
  progress.begin();
  return by_device().run(progress, [](HeapPause &heap, HeapProgress &of) { return heap.save(of); });
}

Status Pause::run(WatchCalls &calls, uint64_t *bytes) {
  *bytes = 0;
  context_.core.deferred_release.retry(*context_.core.backend);
  GMM_TRY(select());
  if (heaps_.size() == 0) {
    if (request_.holds()) GMM_TRY(request_.ticket->hold(request_.hold_ms));
    return remark(GMM_UNCHANGED, "gmm_pause(): no memory of these tags was active.");
  }
  calls.select([&](const WatchTarget &target) { return heaps_.touches(target, false, nullptr); });
  GMM_TRY(calls.prepare());
  Status status = detach();
  if (status.ok()) status = tell_losing(calls);
  if (status.ok() && request_.holds()) status = keep_and_hold();
  heaps_.lock();
  bool any = false;
  // A commit tells nobody of its copies, which were counted before.
  const PauseRequest silently{};
  TransitionProgress uncounted(silently);
  if (status.ok()) status = plan_and_save(request_.holds() ? uncounted : progress_, &any);
  std::atomic<uint64_t> released{0};
  if (status.ok())
    by_device()
        .run(uncounted,
             [&](HeapPause &heap, HeapProgress &) {
               released.fetch_add(heap.commit(), std::memory_order_relaxed);
               return Status();
             })
        .ignore();  // it never fails
  for (HeapPause *heap : heaps_) {
    if (!status.ok()) heap->undo();
    heap->attach_active();
  }
  *bytes = released.load(std::memory_order_relaxed);
  if (status.ok() && !any && *bytes == 0)
    return remark(GMM_UNCHANGED, "gmm_pause(): no memory of these tags was active.");
  return status;
}

}  // namespace gmm
