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
  if (range == nullptr) {
    // Who waits must not take an extent that ends here for one that is ready.
    LockGuard ready_guard(ready_mutex_);
    for_each_region(heap, [&](Region &region) {
      if (is_detached(region) && heap.drop_paused(region)) heap.merge_paused(region);
    });
  }
  bool planned = true;
  for_each_extent(heap, [&](Extent &extent) {
    if (!is_paused(extent) || (range != nullptr && (end_of(extent) <= range->base || base_of(extent) >= range->end())))
      return;
    planned =
        planned && share.extents.push_back(HeapShare::Planned{&extent, extent.state.load(std::memory_order_relaxed)});
  });
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
  std::sort(share.extents.begin(), share.extents.end(), [](const HeapShare::Planned &a, const HeapShare::Planned &b) {
    return base_of(*a.extent) < base_of(*b.extent);
  });
  bool kept = false;
  const auto has_kept = [](const HeapShare::Planned &planned_extent) {
    return planned_extent.extent->kept != nullptr && planned_extent.before == ExtentState::kPaused;
  };
  for (const HeapShare::Planned &each : share.extents) kept = kept || has_kept(each);
  if (!kept) return Status();
  GMM_TRY(plan_ranges(share));
  for (uint64_t i = 0; i < share.parts.size(); ++i) {
    if (has_kept(share.extents[i])) continue;
    for (uint64_t k = 0; k < share.parts[i].range_count; ++k) share.bytes -= share.parts[i].ranges[k].size;
    share.parts[i].range_count = 0;
  }
  return Status();
}

// Limits are asked for all of it before anything is made.
Status Pauser::charge(HeapShare &share) {
  for (HeapShare::Planned &planned : share.extents) {
    if (planned.extent->handle.value != 0) continue;
    const uint64_t size = size_of(*planned.extent);
    if (Quota *full = share.heap->quotas().charge(size))
      return fail(GMM_ERROR_LIMIT_EXCEEDED,
                  "gmm_resume(): %" PRIu64 " bytes are needed, but a limit of %" PRIu64 " bytes is set and %" PRIu64
                  " are held.",
                  size, full->limit(), full->held());
    planned.charged = true;
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
    Extent &extent = *share.extents[share.backed++].extent;
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
  extent.state.store(ExtentState::kRestored, std::memory_order_release);
  ready_.notify_all();
}

Status Pauser::bring_back(HeapShare &share, Progress &progress) {
  progress.share = &share;
  if (share.parts.empty()) {
    GMM_TRY(progress.report(0));
    for (uint64_t i = 0; i < share.extents.size(); ++i) GMM_TRY(back_up_to(share, i));
    for (const HeapShare::Planned &planned : share.extents) ready(*planned.extent);
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
    at.self->ready(*at.share->extents[part].extent);
    return Status();
  };
  steps.progress = [](void *user, uint64_t bytes) { return static_cast<Progress *>(user)->report(bytes); };
  return backups_.restore(share.heap->options().device, share.parts.data(), share.parts.size(), steps);
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
          if (extent->kept != nullptr && !is_paused(*extent)) backups_.drop(*extent->kept, ByteRange{at, stop - at});
          at = stop;
        }
      });
    });
  for (const HeapShare::Planned &planned : share.extents) {
    Extent *extent = planned.extent;
    backups_.views.end(ByteRange{base_of(*extent), size_of(*extent)});
    if (extent->kept == nullptr || is_paused(*extent)) continue;
    if ((flags & GMM_TAG_READ_ONLY) == 0 || extent->kept->chunks.empty()) backups_.forget(*extent);
  }
}

uint64_t Pauser::commit_resume(HeapShare &share) {
  uint64_t bytes = 0;
  {
    LockGuard guard(ready_mutex_);
    for (const HeapShare::Planned &planned : share.extents) {
      if (planned.charged) bytes += size_of(*planned.extent);
      planned.extent->state.store(ExtentState::kActive, std::memory_order_release);
    }
  }
  share.heap->count_paused(-static_cast<int64_t>(bytes));
  settle_kept(share);
  return bytes;
}

// Everything is paused again, but for what gmm_resume_wait() promised to a caller.
void Pauser::undo_resume(HeapShare &share, uint64_t *bytes) {
  MessageGuard keep;
  Heap &heap = *share.heap;
  bool promised = false;
  {
    LockGuard guard(ready_mutex_);
    for (const HeapShare::Planned &planned : share.extents) {
      const bool stays = planned.extent->state == ExtentState::kPromised;
      promised = promised || stays;
      planned.extent->state.store(stays ? ExtentState::kActive : planned.before, std::memory_order_release);
    }
  }
  for (const HeapShare::Planned &planned : share.extents) {
    Extent *extent = planned.extent;
    const uint64_t size = size_of(*extent);
    if (!is_paused(*extent)) {
      if (planned.charged) {
        heap.count_paused(-static_cast<int64_t>(size));
        *bytes += size;
      }
      continue;
    }
    if (extent->mapped) {
      // Memory that stays mapped is mapped already for the next resume.
      if (core_.backend->unmap(address_of(*extent), size).ok())
        extent->mapped = false;
      else
        core_.log.write(LogLevel::kError, "A failed resume leaves memory mapped: %s", last_message());
    }
    if (planned.charged) {
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
  }
  if (promised) settle_kept(share);
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
      bool paused = false;
      LockGuard heap_guard(shares[i].heap->mutex);
      for_each_extent(*shares[i].heap, [&](Extent &extent) { paused = paused || is_paused(extent); });
      if (captured.ok()) captured = check_capture(*shares[i].heap, "gmm_resume()");
      if (!paused) shares.erase(i);
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
    bool paused = false;
    if (!for_all([&](Extent &extent) { paused = paused || is_paused(extent); }))
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_wait(%p, %" PRIu64 "): the range is not memory of this context, or was freed.", address,
                  size);
    if (!paused) {
      for_all([](Extent &extent) {
        if (extent.state == ExtentState::kRestored) extent.state = ExtentState::kPromised;
      });
      return Status();
    }
    const uint64_t past = monotonic_ms() - start;
    if (past >= timeout_ms) return remark(GMM_NOT_READY, "gmm_resume_wait(%p): the memory is still paused.", address);
    ready_.wait_for(ready_mutex_, timeout_ms - past < kLook ? timeout_ms - past : kLook);
  }
}

}  // namespace gmm
