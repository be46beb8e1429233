// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/pause.h"

#include <algorithm>
#include <cinttypes>

#include "engine/pause/steps.h"

namespace gmm {
namespace {

constexpr uint64_t kUnmapGroup = uint64_t{512} << 20;

bool wanted(const PauseRequest &request, gmm_tag tag) {
  for (uint32_t i = 0; i < request.count; ++i)
    if (request.tags[i] == tag) return true;
  return request.count == 0;
}

}  // namespace

Pauser::Pauser(Core &core, BackupStore &backups, HeapSet &heaps, TagTable &tags)
    : core_(core), backups_(backups), heaps_(heaps), tags_(tags) {}

// The VMM heaps of the tags, higher priority first. With HeapSet::mutex held.
Status Pauser::select(const PauseRequest &request, Shares *shares) {
  for (Heap *heap : heaps_.heaps)
    if (heap->options().kind == Kind::kVmm && wanted(request, heap->options().tag)) GMM_TRY(shares->add(*heap, tags_));
  return Status();
}

Status Pauser::check_capture(Heap &heap, const char *operation) {
  if (!heap.streams().any_capturing()) return Status();
  return fail(GMM_ERROR_CAPTURING, "%s: a stream that uses tag \"%s\" is being captured; end the capture first.",
              operation, tags_.get(heap.options().tag)->name);
}

// *active: there is something to do.
Status Pauser::check(Heap &heap, uint32_t flags, bool *active) {
  LockGuard guard(heap.mutex);
  GMM_TRY(check_capture(heap, "gmm_pause()"));
  bool unsaved = false;
  uint32_t importers = 0;
  *active = false;
  for_each_extent(heap, [&](Extent &extent) {
    unsaved = unsaved || extent.state == ExtentState::kUnmapped;
    *active = *active || !is_paused(extent) || extent.handle.value != 0;
    if (!is_paused(extent)) importers += extent.importers.load(std::memory_order_acquire);
  });
  const char *name = tags_.get(heap.options().tag)->name;
  if (unsaved)
    return fail(GMM_ERROR_BUSY,
                "gmm_pause(): a failure left memory of tag \"%s\" unmapped with its contents; call gmm_resume() first.",
                name);
  if (importers == 0 || (flags & GMM_PAUSE_FORCE) != 0) return Status();
  return fail(GMM_ERROR_BUSY,
              "gmm_pause(): %u importers hold memory of tag \"%s\"; let them close it, or pass GMM_PAUSE_FORCE.",
              importers, name);
}

// From here on allocations go to new regions, and all that the heap's memory was used for is done.
Status Pauser::detach(Heap &heap) {
  {
    LockGuard guard(heap.mutex);
    for_each_region(heap, [&](Region &region) {
      if (!is_detached(region) && !region.extents.empty()) heap.detach(region);
    });
  }
  GMM_TRY(heap.drain_caches(true));
  return core_.backend->synchronize(heap.options().device);
}

// Contents out and mappings away, one behind the other.
Status Pauser::save(HeapShare &share, Progress &progress) {
  progress.share = &share;
  if (share.contents == GMM_CONTENTS_DROP) {
    GMM_TRY(progress.report(0));
    const Status status = unmap(share, 0, share.extents.size());
    share.done = share.extents.size();
    return status;
  }
  BackupSteps steps;
  steps.user = &progress;
  steps.after = [](void *user, uint64_t part) {
    Progress &at = *static_cast<Progress *>(user);
    HeapShare &all = *at.share;
    uint64_t bytes = 0;
    for (uint64_t i = all.done; i <= part; ++i) bytes += size_of(*all.extents[i].extent);
    if (bytes < kUnmapGroup && part + 1 != all.extents.size()) return Status();
    const uint64_t first = all.done;
    all.done = part + 1;
    return at.self->unmap(all, first, part + 1 - first);
  };
  steps.progress = [](void *user, uint64_t bytes) { return static_cast<Progress *>(user)->report(bytes); };
  const HeapOptions &options = share.heap->options();
  const Status status =
      backups_.save(options.device, share.contents, tags_.get(options.tag)->flags.load(std::memory_order_relaxed),
                    share.parts.data(), share.parts.size(), steps);
  share.saved = status.ok();
  return status;
}

// The handles of unmapped extents go; bytes that went. What the driver keeps stays with its extent for the next call.
uint64_t Pauser::commit_pause(HeapShare &share) {
  Heap &heap = *share.heap;
  uint64_t bytes = 0;
  for_each_extent(heap, [&](Extent &extent) {
    if (!is_paused(extent)) return;
    extent.state.store(ExtentState::kPaused, std::memory_order_release);
    if (extent.mapped) {  // a failed resume could not unmap it
      if (!core_.backend->unmap(address_of(extent), size_of(extent)).ok()) return;
      extent.mapped = false;
    }
    if (extent.handle.value == 0) return;
    if (const Status status = core_.backend->release(extent.handle); !status.ok()) {
      core_.log.write(LogLevel::kError, "A handle could not be released; the next pause or resume goes on with it: %s",
                      last_message());
      return;
    }
    extent.handle = PhysicalHandle{};
    bytes += size_of(extent);
  });
  for (const HeapShare::Planned &planned : share.extents) {
    Extent *extent = planned.extent;
    extent->region.load(std::memory_order_relaxed)->generation.fetch_add(1, std::memory_order_relaxed);
    if (extent->kept != nullptr && (share.contents == GMM_CONTENTS_DROP || extent->kept->chunks.empty()))
      backups_.forget(*extent);
  }
  heap.quotas().refund(bytes);
  heap.count_paused(static_cast<int64_t>(bytes));
  tags_.get(heap.options().tag)->pauses.fetch_add(1, std::memory_order_relaxed);
  return bytes;
}

// Everything that was unmapped is mapped again. What was saved goes: it is true, but of a pause that never was.
void Pauser::undo_pause(HeapShare &share) {
  MessageGuard keep;
  for (uint64_t i = 0; i < share.extents.size(); ++i) {
    Extent &extent = *share.extents[i].extent;
    if (!extent.mapped && !map_group(share, i, 1).ok())
      core_.log.write(LogLevel::kError, "A failed pause could not map memory again; a resume does: %s", last_message());
    extent.state.store(extent.mapped ? ExtentState::kActive : ExtentState::kUnmapped, std::memory_order_release);
    if (share.saved) backups_.forget(extent);
  }
  for_each_extent(*share.heap, [&](Extent &extent) {
    if (extent.kept != nullptr && extent.kept->chunks.empty()) backups_.forget(extent);
  });
}

// Regions of which everything is active are the heap's again.
void Pauser::attach_active(Heap &heap) {
  bool retaining = false;
  for_each_extent(heap,
                  [&](Extent &extent) { retaining = retaining || (!is_paused(extent) && extent.kept != nullptr); });
  heap.set_retaining(retaining);
  for_each_region(heap, [&](Region &region) {
    bool paused = false;
    for_each_extent(region, [&](Extent &extent) { paused = paused || is_paused(extent); });
    if (is_detached(region) && !paused) heap.attach(region);
  });
}

Status Pauser::pause(const PauseRequest &request, uint64_t *bytes) {
  *bytes = 0;
  LockGuard guard(mutex_);
  Shares shares(core_.allocator);
  Status status;
  bool any = false;
  {
    LockGuard set_guard(heaps_.mutex);
    core_.deferred_release.retry(*core_.backend);
    GMM_TRY(select(request, &shares));
    for (uint64_t i = shares.size(); i-- > 0;) {
      bool active = false;
      GMM_TRY(check(*shares[i].heap, request.flags, &active));
      if (!active) shares.erase(i);
    }
    if (shares.size() == 0) return remark(GMM_UNCHANGED, "gmm_pause(): no memory of these tags was active.");
    for (HeapShare *share : shares) {
      status = detach(*share->heap);
      if (!status.ok()) break;
    }
    shares.lock();
  }
  Progress progress{request};
  progress.self = this;
  for (HeapShare *share : shares) {
    if (!status.ok()) break;
    status = plan_pause(*share, request.flags);
    progress.total += share->bytes;
    any = any || !share->extents.empty();
  }
  if (status.ok()) progress.begin();
  for (HeapShare *share : shares) {
    if (!status.ok()) break;
    status = save(*share, progress);
    progress.before += share->bytes;
  }
  for (HeapShare *share : shares) {
    if (status.ok())
      *bytes += commit_pause(*share);
    else
      undo_pause(*share);
    attach_active(*share->heap);
  }
  if (status.ok() && !any && *bytes == 0)
    return remark(GMM_UNCHANGED, "gmm_pause(): no memory of these tags was active.");
  return status;
}

// What is active, by address, with places for what is to be kept. Memory that came since detach() is in use, and stays.
Status Pauser::plan_pause(HeapShare &share, uint32_t flags) {
  share.contents = tags_.get(share.heap->options().tag)->contents.load(std::memory_order_relaxed);
  if ((flags & GMM_PAUSE_DROP) != 0) share.contents = GMM_CONTENTS_DROP;
  if ((flags & GMM_PAUSE_KEEP_HOST) != 0) share.contents = GMM_CONTENTS_HOST;
  if ((flags & GMM_PAUSE_KEEP_FILE) != 0) share.contents = GMM_CONTENTS_FILE;
  const bool drops = share.contents == GMM_CONTENTS_DROP;
  bool planned = true;
  for_each_region(*share.heap, [&](Region &region) {
    if (!is_detached(region)) return;
    for_each_extent(region, [&](Extent &extent) {
      planned = planned && (is_paused(extent) || ((drops || keep(extent)) && share.extents.push_back(HeapShare::Planned{
                                                                                 &extent, ExtentState::kActive})));
    });
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
  std::sort(share.extents.begin(), share.extents.end(), [](const HeapShare::Planned &a, const HeapShare::Planned &b) {
    return base_of(*a.extent) < base_of(*b.extent);
  });
  return drops ? Status() : plan_ranges(share);
}

}  // namespace gmm
