// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>

#include "base/process.h"
#include "engine/pause/pause.h"
#include "engine/pause/steps.h"

namespace gmm {
namespace {

constexpr uint64_t kMapGroup = uint64_t{256} << 20;

}  // namespace

// The heaps of which memory lies in the range. With HeapSet::mutex held.
Status Pauser::select_range(const ByteRange &range, Shares *shares) {
  for (uintptr_t at = range.base; at < range.end();) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    const Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
    Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
    bool known = false;
    for (Heap *each : heaps_.heaps) known = known || each == heap;
    if (!known)
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_range(%p, %" PRIu64 "): 0x%" PRIxPTR " is not memory of this context.",
                  reinterpret_cast<void *>(range.base), range.size, at);
    at = end_of(*extent);
    bool selected = heap->options().kind != Kind::kVmm;
    for (HeapShare *share : *shares) selected = selected || share->heap == heap;
    if (!selected) GMM_TRY(shares->add(*heap, tags_));
  }
  return Status();
}

// What is to come back, by address. Memory that nobody wants any more is given up, and what may be one handle becomes one.
Status Pauser::plan_resume(HeapShare &share, const ByteRange *range) {
  Heap &heap = *share.heap;
  GMM_TRY(check_capture(heap, "gmm_resume()"));
  {
    // Who waits must not take an extent that ends here for one that is ready.
    LockGuard ready_guard(ready_mutex_);
    for_each_extent(heap, [](Extent &extent) { extent.told = false; });
    if (range == nullptr)
      for_each_region(heap, [&](Region &region) {
        if (is_detached(region) && heap.drop_paused(region)) heap.merge_paused(region, append_kept, this);
      });
  }
  bool planned = true;
  for_each_extent(heap, [&](Extent &extent) {
    if (!is_away(extent) || (range != nullptr && (end_of(extent) <= range->base || base_of(extent) >= range->end())))
      return;
    planned = planned && share.extents.push_back(&extent);
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
  std::sort(share.extents.begin(), share.extents.end(),
            [](const Extent *a, const Extent *b) { return base_of(*a) < base_of(*b); });
  bool kept = false;
  for (Extent *extent : share.extents) kept = kept || (extent->kept != nullptr && !extent->holds);
  if (!kept) return Status();
  GMM_TRY(plan_ranges(share));
  for (uint64_t i = 0; i < share.parts.size(); ++i) {
    const Extent &extent = *share.extents[i];
    if (extent.kept != nullptr && !extent.holds) continue;
    for (uint64_t k = 0; k < share.parts[i].range_count; ++k) share.bytes -= share.parts[i].ranges[k].size;
    share.parts[i].range_count = 0;
  }
  return Status();
}

// Limits are asked for all of it before anything is made.
Status Pauser::charge(HeapShare &share) {
  for (Extent *extent : share.extents) {
    if (extent->handle.value != 0) continue;
    const uint64_t size = size_of(*extent);
    if (Quota *full = share.heap->quotas().charge(size))
      return fail(GMM_ERROR_LIMIT_EXCEEDED,
                  "gmm_resume(): %" PRIu64 " bytes are needed, but a limit of %" PRIu64 " bytes is set and %" PRIu64
                  " are held.",
                  size, full->limit(), full->held());
    extent->fresh = true;
  }
  return Status();
}

// Memory for the extents up to this one, and somewhat more, so that neighbours are mapped together. Not for all at once: the driver clears
// memory that was just released, and the first copies run meanwhile.
Status Pauser::back_up_to(HeapShare &share, uint64_t part) {
  if (part < share.backed) return Status();
  const uint64_t first = share.backed;
  uint64_t bytes = 0;
  while (share.backed < share.extents.size() && (share.backed <= part || bytes < kMapGroup)) {
    Extent &extent = *share.extents[share.backed++];
    bytes += size_of(extent);
    if (extent.handle.value != 0) continue;
    PhysicalHandle handle;
    GMM_TRY(core_.backend->create(extent.location.load(std::memory_order_relaxed), size_of(extent), &handle));
    extent.handle = handle;
  }
  return map_group(share, first, share.backed - first);
}

// Its contents are there: who waits may use it.
void Pauser::ready(Extent &extent) {
  LockGuard guard(ready_mutex_);
  extent.away.store(false, std::memory_order_release);
  ready_.notify_all();
}

Status Pauser::bring_back(HeapShare &share, Progress &progress) {
  progress.share = &share;
  if (share.parts.empty()) {
    GMM_TRY(progress.report(0));
    for (uint64_t i = 0; i < share.extents.size(); ++i) GMM_TRY(back_up_to(share, i));
    for (Extent *extent : share.extents) ready(*extent);
    return Status();
  }
  BackupSteps steps;
  steps.user = &progress;
  steps.before = [](void *user, uint64_t part) {
    Progress &at = *static_cast<Progress *>(user);
    return at.self->back_up_to(*at.share, part);
  };
  steps.after = [](void *user, uint64_t part) {
    Progress &at = *static_cast<Progress *>(user);
    at.self->ready(*at.share->extents[part]);
    return Status();
  };
  steps.progress = [](void *user, uint64_t bytes) { return static_cast<Progress *>(user)->report(bytes); };
  return backups.restore(share.heap->options().device, share.parts.data(), share.parts.size(), steps);
}

// What was kept goes, but for whole large blocks of a read-only tag: other memory may have got other contents before the next pause.
void Pauser::settle_kept(HeapShare &share) {
  const uint32_t flags = tags_.get(share.heap->options().tag)->flags.load(std::memory_order_relaxed);
  if ((flags & GMM_TAG_READ_ONLY) != 0)
    for_each_region(*share.heap, [&](Region &region) {
      share.heap->for_each_span(region, [&](Span &span) {
        if (span.is(SpanState::kLarge) && span.slot(0).load(std::memory_order_relaxed) != 0) return;
        for (uintptr_t at = span.begin(); at < span.end();) {
          Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
          if (extent == nullptr) return;
          const uintptr_t stop = std::min(end_of(*extent), span.end());
          if (extent->kept != nullptr && !is_away(*extent)) backups.drop(*extent->kept, ByteRange{at, stop - at});
          at = stop;
        }
      });
    });
  for (Extent *extent : share.extents) {
    free_views(base_of(*extent), size_of(*extent));
    if (extent->kept == nullptr || is_away(*extent)) continue;
    if ((flags & GMM_TAG_READ_ONLY) == 0 || extent->kept->chunks.empty()) forget_contents(*extent, 0, 0);
  }
}

uint64_t Pauser::commit_resume(HeapShare &share) {
  uint64_t bytes = 0;
  for (Extent *extent : share.extents) {
    if (extent->fresh) bytes += size_of(*extent);
    extent->holds = true;
    extent->fresh = extent->told = false;
  }
  share.heap->count_paused(-static_cast<int64_t>(bytes));
  settle_kept(share);
  return bytes;
}

// All goes away again, but for what somebody was told is ready.
void Pauser::undo_resume(HeapShare &share, uint64_t *bytes) {
  MessageGuard keep;
  Heap &heap = *share.heap;
  bool told = false;
  {
    LockGuard guard(ready_mutex_);
    for (Extent *extent : share.extents) {
      extent->told = extent->told && !is_away(*extent);
      told = told || extent->told;
      if (!extent->told) extent->away.store(true, std::memory_order_release);
    }
  }
  for (Extent *extent : share.extents) {
    const uint64_t size = size_of(*extent);
    if (extent->told) {
      if (extent->fresh) {
        heap.count_paused(-static_cast<int64_t>(size));
        *bytes += size;
      }
      extent->holds = true;
      extent->fresh = extent->told = false;
      continue;
    }
    if (extent->mapped) {
      // Memory that stays mapped is mapped already for the next resume.
      if (core_.backend->unmap(address_of(*extent), size).ok())
        extent->mapped = false;
      else
        core_.log.write(LogLevel::kError, "A failed resume leaves memory mapped: %s", last_message());
    }
    if (extent->fresh) {
      if (extent->handle.value == 0) {
        heap.quotas().refund(size);
      } else if (!extent->mapped && core_.backend->release(extent->handle).ok()) {
        extent->handle = PhysicalHandle{};
        heap.quotas().refund(size);
      } else {
        core_.log.write(LogLevel::kError, "A failed resume keeps a handle for the next: %s", last_message());
        heap.count_paused(-static_cast<int64_t>(size));
      }
    }
    extent->fresh = false;
  }
  if (told) settle_kept(share);
}

Status Pauser::resume(const PauseRequest &request, const ByteRange *range, uint64_t *bytes) {
  *bytes = 0;
  LockGuard guard(mutex_);
  Shares shares(core_.allocator);
  {
    LockGuard set_guard(heaps_.mutex);
    core_.deferred_release.retry(*core_.backend);  // mappings that stand where memory comes back
    GMM_TRY(range == nullptr ? select(request, &shares) : select_range(*range, &shares));
    Status captured;  // also of memory that came since: the tag is in use
    for (uint64_t i = shares.size(); i-- > 0;) {
      bool away = false;
      LockGuard heap_guard(shares[i].heap->mutex);
      for_each_extent(*shares[i].heap, [&](Extent &extent) { away = away || is_away(extent); });
      if (captured.ok()) captured = check_capture(*shares[i].heap, "gmm_resume()");
      if (!away) shares.erase(i);
    }
    if (shares.size() != 0) GMM_TRY(captured);
    shares.lock();
  }
  Progress progress{request};
  progress.self = this;
  Status status;
  uint64_t extents = 0;
  for (HeapShare *share : shares) {
    if (status.ok()) status = plan_resume(*share, range);
    progress.total += share->bytes;
    extents += share->extents.size();
  }
  for (HeapShare *share : shares)
    if (status.ok()) status = charge(*share);
  if (status.ok()) progress.begin();
  for (HeapShare *share : shares) {
    if (!status.ok()) break;
    status = bring_back(*share, progress);
    progress.before += share->bytes;
  }
  for (HeapShare *share : shares) {
    if (status.ok())
      *bytes += commit_resume(*share);
    else
      undo_resume(*share, bytes);
    attach_active(*share->heap);
    share->heap->end_empty_regions();
  }
  if (!status.ok()) return status;
  if (extents == 0) return remark(GMM_UNCHANGED, "gmm_resume(): no memory of these tags was paused.");
  return Status();
}

Status Pauser::resume_range(const void *address, uint64_t size, uint64_t *bytes) {
  const ByteRange range{reinterpret_cast<uintptr_t>(address), size};
  return resume(PauseRequest(), &range, bytes);
}

// --- Waiting ------------------------------------------------------------------------------------------------

Status Pauser::wait_ready(const void *address, uint64_t size, uint64_t timeout_ms) {
  constexpr uint64_t kLook = 50;  // ms: memory may also be freed meanwhile, of which nobody tells
  const ByteRange range{reinterpret_cast<uintptr_t>(address), size};
  const auto for_all = [&](auto fn) {
    for (uintptr_t at = range.base; at < range.end();) {
      Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
      if (extent == nullptr) return false;
      at = end_of(*extent);
      fn(*extent);
    }
    return true;
  };
  const uint64_t start = monotonic_ms();
  LockGuard guard(ready_mutex_);
  for (;;) {
    bool away = false;
    if (!for_all([&](Extent &extent) { away = away || is_away(extent); }))
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_wait(%p, %" PRIu64 "): the range is not memory of this context, or was freed.", address,
                  size);
    if (!away) {
      for_all([](Extent &extent) { extent.told = true; });
      return Status();
    }
    const uint64_t past = monotonic_ms() - start;
    if (past >= timeout_ms) return remark(GMM_NOT_READY, "gmm_resume_wait(%p): the memory is still paused.", address);
    ready_.wait_for(ready_mutex_, timeout_ms - past < kLook ? timeout_ms - past : kLook);
  }
}

}  // namespace gmm
