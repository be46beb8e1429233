// SPDX-License-Identifier: Apache-2.0
// The steps that pause one heap.
#include <cinttypes>

#include "engine/pause/foreign_bytes.h"
#include "engine/pause/heap_transition.h"

namespace gmm {

Status HeapTransition::check_pause(bool *active) {
  LockGuard guard(heap_.mutex);
  GMM_TRY(check_capture("gmm_pause()"));
  bool unmapped = false;
  uint32_t importers = 0;
  contents_ = contents_of_request();
  const bool drops_paused = request_.has_ranges() && contents_ == GMM_CONTENTS_DROP;
  *active = false;
  for_each_asked([&](Extent &extent) {
    unmapped = unmapped || extent.state == ExtentState::kUnmapped;
    const bool goes_on = extent.is_spare ? !request_.has_ranges() : drops_paused || extent.handle.value != 0;
    *active = *active || !is_paused(extent) || goes_on;
    if (!is_paused(extent)) importers += other_importers(extent);
  });
  if (unmapped)
    return fail(GMM_ERROR_BUSY,
                "gmm_pause(): a failure left memory of tag \"%s\" unmapped with its contents; call gmm_resume() first.",
                tag().name);
  return check_importers(importers);
}

Status HeapTransition::check_importers(uint32_t importers) {
  if (importers == 0 || (request_.flags & GMM_PAUSE_FORCE) != 0) return Status();
  return fail(GMM_ERROR_BUSY,
              "gmm_pause(): importers hold memory of tag \"%s\"; let them close it, or pass GMM_PAUSE_FORCE.",
              tag().name);
}

Status HeapTransition::detach() {
  if (request_.has_ranges()) {  // a block's memory, and nothing free
    if (request_.is_ordered() && contents_ == GMM_CONTENTS_DROP) return heap_.paused().give_back_on(request_.stream);
    heap_.paused().give_back_idle();
    return heap_.paused().wait_for_device();
  }
  {
    LockGuard guard(heap_.mutex);
    // Memory that was freed since earlier pauses would use up the addresses, as allocations go to new regions after
    // each.
    give_up_freed(heap_, context_.ready);
    heap_.for_each_region([&](Region &region) {
      if (!is_detached(region) && !region.elastic && !region.extents.empty()) heap_.paused().detach(region);
    });
    heap_.paused().keep_detached(true);
  }
  GMM_TRY(heap_.drain_caches(true));
  return heap_.paused().wait_for_device();
}

bool HeapTransition::ensure_kept(Extent &extent) {
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

gmm_contents HeapTransition::contents_of_request() {
  if ((request_.flags & GMM_PAUSE_DROP) != 0) return GMM_CONTENTS_DROP;
  if ((request_.flags & GMM_PAUSE_KEEP_HOST) != 0) return GMM_CONTENTS_HOST;
  if ((request_.flags & GMM_PAUSE_KEEP_FILE) != 0) return GMM_CONTENTS_FILE;
  return tag().contents.load(std::memory_order_relaxed);
}

Status HeapTransition::plan_pause() {
  contents_ = contents_of_request();
  const bool drops = contents_ == GMM_CONTENTS_DROP;
  bool planned = true;
  uint32_t importers = 0;
  for_each_asked([&](Extent &extent) {
    const Region &region = *region_of(&extent);
    if (!is_detached(region) && !region.elastic) return;
    if (!is_paused(extent)) importers += other_importers(extent);
    planned = planned && (is_paused(extent) || ((drops || ensure_kept(extent)) && plan(extent)));
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
  // Some may have come while the pause waited for the device.
  GMM_TRY(check_importers(importers));
  sort_planned();
  return drops ? Status() : plan_live_ranges();
}

Status HeapTransition::unmap_planned(uint64_t first, uint64_t count) {
  const Status status = unmap(first, count);
  if (status.ok() || !was_held_) return status;
  for (uint64_t i = first; i < first + count; ++i)
    extents_[i].extent->state.store(ExtentState::kUnmapped, std::memory_order_release);
  return Status();
}

Status HeapTransition::unmap_through(uint64_t index) {
  constexpr uint64_t kUnmapGroup = uint64_t{512} << 20;
  uint64_t bytes = 0;
  for (uint64_t i = next_extent_; i <= index; ++i) bytes += size_of(*extents_[i].extent);
  if (bytes < kUnmapGroup && index + 1 != extents_.size()) return Status();
  const uint64_t first = next_extent_;
  next_extent_ = index + 1;
  return unmap_planned(first, index + 1 - first);
}

Status HeapTransition::save() {
  if (contents_ == GMM_CONTENTS_DROP) {
    GMM_TRY(report(0));
    if (!request_.has_ranges()) return unmap_planned(0, extents_.size());
    // Pages that others may reach go. The rest becomes spares.
    for (uint64_t i = 0; i < extents_.size(); ++i) {
      const Extent &extent = *extents_[i].extent;
      if (extent.importers.load(std::memory_order_acquire) != 0 || extent.is_out.load(std::memory_order_relaxed))
        GMM_TRY(unmap_planned(i, 1));
    }
    return Status();
  }
  GMM_TRY(copy_out(true));
  saved_ = true;
  return Status();
}

Status HeapTransition::copy_out(bool unmaps) {
  BackupSteps steps = backup_steps();
  steps.pass = next_pass_;
  if (unmaps)
    steps.after = [](void *self, uint64_t part) { return static_cast<HeapTransition *>(self)->unmap_through(part); };
  return context_.backups.save(device(), contents_, tag().flags.load(std::memory_order_relaxed), parts_.data(),
                               parts_.size(), steps);
}

Status HeapTransition::keep() {
  was_held_ = true;
  const bool is_written = (request_.flags & GMM_PAUSE_NO_WRITES) == 0 &&
                          (tag().flags.load(std::memory_order_relaxed) & GMM_TAG_READ_ONLY) == 0;
  next_pass_ = is_written ? SavePass::kAhead : SavePass::kOnly;
  if (contents_ == GMM_CONTENTS_DROP) return report(0);
  GMM_TRY(copy_out(false));
  if (is_written) next_pass_ = SavePass::kAgain;
  return Status();
}

Status HeapTransition::commit_pause() {
  const Core &core = context_.core;
  ForeignBytes foreign(*core.backend, heap_);
  uint64_t bytes = 0;
  for_each_asked([&](Extent &extent) {
    if (!is_paused(extent) || (extent.is_spare && request_.has_ranges())) return;
    extent.state.store(ExtentState::kPaused, std::memory_order_release);
    if (extent.mapped) {  // a failed resume could not unmap it
      if (!core.backend->unmap(address_of(extent), size_of(extent)).ok()) return;
      extent.mapped = false;
    }
    if (extent.handle.value == 0) return;
    foreign.before(extent);
    if (!release_pages(extent)) return;
    foreign.released(extent);
    extent.is_out.store(false, std::memory_order_relaxed);
    bytes += size_of(extent);
  });
  for (const PlannedExtent &planned : extents_) {
    Extent *extent = planned.extent;
    extent->region.load(std::memory_order_relaxed)->generation.fetch_add(1, std::memory_order_relaxed);
    extent->paused_by.store(request_.caller, std::memory_order_relaxed);
    if (extent->kept != nullptr && (contents_ == GMM_CONTENTS_DROP || extent->kept->chunks.empty()))
      context_.backups.forget(*extent);
  }
  // The program writes anew what it dropped, and cannot tell which part of a read-only tag that was.
  if (contents_ == GMM_CONTENTS_DROP && !extents_.empty()) tag().epoch.fetch_add(1, std::memory_order_relaxed);
  heap_.quotas().refund(bytes);
  heap_.paused().count(static_cast<int64_t>(bytes));
  if (!request_.has_ranges()) tag().pauses.fetch_add(1, std::memory_order_relaxed);
  const uint64_t stays = bytes == 0 ? 0 : foreign.end();
  heap_.paused().set_foreign_bytes(stays);
  if (stays != 0)
    core.log.write(
        LogLevel::kInfo,
        "gmm_pause(): %" PRIu64
        " bytes of tag \"%s\" did not return to device %d: others hold them, by a descriptor, an import or a "
        "registration.",
        stays, tag().name, heap_.options().device.ordinal);
  moved = bytes - foreign.believed();
  has_dropped = request_.has_ranges() && contents_ == GMM_CONTENTS_DROP;
  for (const PlannedExtent &planned : extents_) {
    Extent &extent = *planned.extent;
    Region &region = *region_of(&extent);
    if (region.elastic) region.active.fetch_sub(size_of(extent), std::memory_order_relaxed);
    if (!has_dropped || is_paused(extent)) continue;
    heap_.paused().give_back(extent);
    moved += size_of(extent);
  }
  // Extents that importers have must be found when they close them.
  for_each_asked([&](Extent &extent) {
    const bool ends = extent.is_spare ? extent.handle.value == 0 : has_dropped && extent.importers.load() == 0;
    if (ends) leave_gap(extent);
  });
  if (has_dropped) extents_.clear();
  return Status();
}

void HeapTransition::undo_pause() {
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
    const bool was_kept = was_held_ && !is_paused(extent);
    if (extent.kept != nullptr && (was_kept || extent.kept->chunks.empty())) context_.backups.drop_saved(extent);
  });
}

}  // namespace gmm
