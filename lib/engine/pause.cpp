// SPDX-License-Identifier: Apache-2.0
#include "engine/pause.h"

#include <cinttypes>

#include "engine/lookup.h"

namespace gmm {
namespace {

// Whether what was saved is still that block's place. A block that was freed while paused may have given its addresses up, and
// another heap may have got them since.
bool still_live(const Core &core, const Heap &heap, const BackupPiece &piece) {
  const void *address = reinterpret_cast<void *>(piece.base);
  const Span *span = core.page_map.find(address);
  const Extent *extent = core.page_map.find_extent(address);
  if (span == nullptr || extent == nullptr || !span->live() || span->begin() != piece.base) return false;
  const Region *region = extent->region.load(std::memory_order_relaxed);
  return region != nullptr && region->heap.load(std::memory_order_relaxed) == &heap &&
         region->paused.load(std::memory_order_relaxed) != 0;
}

void *address_of(const Extent &extent) { return reinterpret_cast<void *>(extent.base.load(std::memory_order_relaxed)); }
uint64_t size_of(const Extent &extent) { return extent.size.load(std::memory_order_relaxed); }
bool is_paused(const Region &region) { return region.paused.load(std::memory_order_relaxed) != 0; }
Device owner_of(const Extent &extent, const Heap &heap) {
  const Device location = extent.location.load(std::memory_order_relaxed);
  return location.is_host() ? location : heap.options().device;
}

template <typename Fn>
void for_each_region(Heap &heap, bool paused, Fn fn) {
  for (Region *region = heap.regions().front(), *next; region != nullptr; region = next) {
    next = heap.regions().next(region);
    if (is_paused(*region) == paused && !region->extents.empty()) fn(*region);
  }
}
template <typename Fn>
void for_each_extent(Region &region, Fn fn) {
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent)) fn(*extent);
}

}  // namespace

bool Pauser::wanted(const gmm_tag *tags, uint32_t count, gmm_tag tag) {
  for (uint32_t i = 0; i < count; ++i)
    if (tags[i] == tag) return true;
  return count == 0;
}

// The VMM heaps of the tags, higher priority first. With HeapSet::mutex held.
Status Pauser::select(const gmm_tag *tags, uint32_t count, Vector<Heap *> *out) {
  for (Heap *heap : heaps_.heaps) {
    if (heap->options().kind != Kind::kVmm || !wanted(tags, count, heap->options().tag)) continue;
    const int32_t priority = tags_.get(heap->options().tag)->priority;
    uint64_t at = out->size();
    while (at > 0 && tags_.get((*out)[at - 1]->options().tag)->priority < priority) --at;
    if (!out->insert(at, heap)) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
  }
  return Status();
}

Status Pauser::check(Heap &heap, uint32_t flags) {
  LockGuard guard(heap.mutex);
  if (heap.streams().any_capturing())
    return fail(GMM_ERROR_CAPTURING,
                "gmm_pause(): a stream that uses tag \"%s\" is being captured; end the capture first.",
                tags_.get(heap.options().tag)->name);
  // What an earlier failure left with pages has contents and no backup, or a backup and old contents: only a resume can tell.
  bool half = false;
  for_each_region(heap, true, [&](Region &region) {
    for_each_extent(region, [&](Extent &extent) { half = half || extent.mapped || extent.handle.value != 0; });
  });
  if (half)
    return fail(GMM_ERROR_BUSY,
                "gmm_pause(): a failure left memory of tag \"%s\" half paused; call gmm_resume() first.",
                tags_.get(heap.options().tag)->name);
  if ((flags & GMM_PAUSE_FORCE) != 0) return Status();
  uint32_t importers = 0;
  for_each_region(heap, false, [&](Region &region) {
    for_each_extent(region, [&](Extent &extent) { importers += extent.importers.load(std::memory_order_acquire); });
  });
  if (importers == 0) return Status();
  return fail(GMM_ERROR_BUSY,
              "gmm_pause(): %u importers hold memory of tag \"%s\"; let them close it, or pass GMM_PAUSE_FORCE.",
              importers, tags_.get(heap.options().tag)->name);
}

Backup *Pauser::make_backup(Heap &heap) { return core_.allocator.create<Backup>(core_, heap.options().device); }

Status Pauser::plan(Heap &heap, Backup &backup) {
  bool planned = true;
  for_each_region(heap, true, [&](Region &region) {
    bool fresh = false;
    for_each_extent(region, [&](Extent &extent) { fresh = fresh || extent.mapped; });
    if (!fresh) return;
    heap.for_each_span(region, [&](Span &span) {
      if (!planned || !span.live()) return;
      uint64_t size = span.bytes();
      if (span.is(SpanState::kLarge)) size = span.slot(0).load(std::memory_order_relaxed) & ~kUsedElsewhere;
      if (size != 0 && !backup.add(span.begin(), size)) planned = false;
    });
  });
  return planned ? Status() : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
}

// Unmaps every extent of the paused regions, or none. Handles stay.
Status Pauser::unmap_all(const Vector<Heap *> &heaps, uint64_t *extents) {
  Status status;
  for (Heap *heap : heaps) {
    for_each_region(*heap, true, [&](Region &region) {
      for_each_extent(region, [&](Extent &extent) {
        if (!status.ok() || !extent.mapped) return;
        status = core_.backend->unmap(address_of(extent), size_of(extent));
        if (!status.ok()) return;
        extent.mapped = false;
        ++*extents;
      });
    });
  }
  if (status.ok()) return status;
  MessageGuard keep;
  for (Heap *heap : heaps) {
    for_each_region(*heap, true, [&](Region &region) {
      for_each_extent(region, [&](Extent &extent) {
        if (extent.mapped || extent.handle.value == 0) return;
        Status back = core_.backend->map(address_of(extent), size_of(extent), extent.handle);
        if (back.ok()) {
          back = core_.backend->set_access(address_of(extent), size_of(extent), owner_of(extent, *heap),
                                           heap->options().peers);
          if (!back.ok())  // stays paused with its pages
            core_.leftovers.unmap(*core_.backend, address_of(extent), size_of(extent));
        }
        extent.mapped = back.ok();
        if (!back.ok())
          core_.log.write(LogLevel::kError, "A failed pause could not map memory again; resume does: %s",
                          last_message());
      });
    });
  }
  return status;
}

// The handles of unmapped extents go; bytes that went.
uint64_t Pauser::release_all(Heap &heap) {
  uint64_t bytes = 0;
  for_each_region(heap, true, [&](Region &region) {
    for_each_extent(region, [&](Extent &extent) {
      if (extent.mapped || extent.handle.value == 0) return;
      const Status status = core_.backend->release(extent.handle);
      if (!status.ok()) {
        core_.log.write(LogLevel::kError, "A handle could not be released; its memory comes back with the resume: %s",
                        last_message());
        return;
      }
      extent.handle = PhysicalHandle{};
      bytes += size_of(extent);
    });
    region.generation.fetch_add(1, std::memory_order_relaxed);
  });
  heap.ledgers().refund(bytes);
  heap.count_paused(static_cast<int64_t>(bytes));
  return bytes;
}

Status Pauser::pause(const gmm_tag *tags, uint32_t count, uint32_t flags, uint64_t *bytes) {
  LockGuard guard(mutex_);
  LockGuard set_guard(heaps_.mutex);
  core_.leftovers.retry(*core_.backend);
  Vector<Heap *> all(core_.allocator), heaps(core_.allocator);
  GMM_TRY(select(tags, count, &all));
  if (!heaps.reserve(all.size()) || !paused_.reserve(paused_.size() + all.size()))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
  for (Heap *heap : all) {
    GMM_TRY(check(*heap, flags));
    LockGuard heap_guard(heap->mutex);
    uint64_t active = 0;
    for_each_region(*heap, false, [&](Region &) { ++active; });
    if (active != 0) heaps.push_back_reserved(heap);
  }
  *bytes = 0;
  if (heaps.empty()) return remark(GMM_UNCHANGED, "gmm_pause(): no memory of these tags was active.");

  // From here on allocations of the tags go to new regions.
  Vector<Region *> detached(core_.allocator);
  Vector<Backup *> backups(core_.allocator);
  Status status;
  for (Heap *heap : heaps) {
    {
      LockGuard heap_guard(heap->mutex);
      for_each_region(*heap, false, [&](Region &region) {
        if (!detached.push_back(&region))
          status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
        else
          heap->detach(region);
      });
    }
    if (status.ok()) status = heap->drain_caches(true);
    if (status.ok()) status = core_.backend->synchronize(heap->options().device);
    Backup *backup = status.ok() ? make_backup(*heap) : nullptr;
    if (status.ok() && (backup == nullptr || !backups.push_back(backup))) {
      core_.allocator.destroy(backup);
      status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause.");
    }
  }
  for (Heap *heap : heaps) heap->mutex.lock();
  for (uint64_t i = 0; i < heaps.size() && status.ok(); ++i) {
    const gmm_contents contents = tags_.get(heaps[i]->options().tag)->contents;
    if (contents == GMM_CONTENTS_DROP) continue;
    status = plan(*heaps[i], *backups[i]);
    if (status.ok()) status = backups[i]->save(contents);
  }
  uint64_t extents = 0;
  if (status.ok()) status = unmap_all(heaps, &extents);
  if (status.ok()) {
    for (uint64_t i = 0; i < heaps.size(); ++i) {
      const uint64_t went = release_all(*heaps[i]);
      *bytes += went;
      paused_.push_back_reserved(Entry{heaps[i], backups[i], went});
      tags_.get(heaps[i]->options().tag)->pauses.fetch_add(1, std::memory_order_relaxed);
    }
  } else {
    for (Region *region : detached) {
      bool whole = true;
      for_each_extent(*region, [&](Extent &extent) { whole = whole && extent.mapped; });
      if (whole) region->heap.load(std::memory_order_relaxed)->attach(*region);
    }
    MessageGuard keep;
    for (Backup *backup : backups) core_.allocator.destroy(backup);
  }
  for (Heap *heap : heaps) heap->mutex.unlock();
  return status;
}

// --- Resume -------------------------------------------------------------------------------------------------

// Pages and mappings for every extent of a region that has none. On failure some may be left: unback_region() follows.
Status Pauser::back_region(Heap &heap, Region &region, uint64_t *bytes) {
  Backend &backend = *core_.backend;
  Status status;
  for_each_extent(region, [&](Extent &extent) {
    if (!status.ok() || extent.mapped) return;
    const uint64_t size = size_of(extent);
    if (extent.handle.value == 0) {
      if (Ledger *full = heap.ledgers().charge(size)) {
        status = fail(GMM_ERROR_LIMIT_EXCEEDED,
                      "gmm_resume(): %" PRIu64 " bytes are needed, but a limit of %" PRIu64 " bytes is set and %" PRIu64
                      " are held.",
                      size, full->limit(), full->held());
        return;
      }
      status = backend.create(extent.location.load(std::memory_order_relaxed), size, &extent.handle);
      if (!status.ok()) {
        extent.handle = PhysicalHandle{};
        heap.ledgers().refund(size);
        return;
      }
      extent.fresh = true;
      *bytes += size;
    }
    status = backend.map(address_of(extent), size, extent.handle);
    if (!status.ok()) return;
    status = backend.set_access(address_of(extent), size, owner_of(extent, heap), heap.options().peers);
    if (status.ok()) {
      extent.mapped = true;
      extent.newly_mapped = true;
    } else {
      core_.leftovers.unmap(backend, address_of(extent), size);
    }
  });
  return status;
}

void Pauser::unback_region(Heap &heap, Region &region) {
  MessageGuard keep;
  for_each_extent(region, [&](Extent &extent) {
    if (extent.newly_mapped) {
      const Status status = core_.backend->unmap(address_of(extent), size_of(extent));
      // Memory that stays mapped is mapped already for the next resume.
      extent.mapped = !status.ok();
      if (!status.ok()) core_.log.write(LogLevel::kError, "A failed resume leaves memory mapped: %s", last_message());
      extent.newly_mapped = false;
    }
    if (extent.fresh && !extent.mapped) {
      if (core_.backend->release(extent.handle).ok()) {
        extent.handle = PhysicalHandle{};
        heap.ledgers().refund(size_of(extent));
      } else {
        core_.log.write(LogLevel::kError, "A failed resume keeps a handle for the next: %s", last_message());
      }
    }
    if (extent.fresh && extent.handle.value != 0) heap.count_paused(-static_cast<int64_t>(size_of(extent)));
    extent.fresh = false;
  });
}

Status Pauser::resume(const gmm_tag *tags, uint32_t count, uint64_t *bytes) {
  LockGuard guard(mutex_);
  LockGuard set_guard(heaps_.mutex);
  core_.leftovers.retry(*core_.backend);  // mappings that stand where memory comes back
  Vector<Heap *> all(core_.allocator), heaps(core_.allocator);
  GMM_TRY(select(tags, count, &all));
  if (!heaps.reserve(all.size())) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a resume.");
  for (Heap *heap : all) {
    LockGuard heap_guard(heap->mutex);
    uint64_t paused = 0;
    for (Region *region = heap->regions().front(); region != nullptr; region = heap->regions().next(region))
      paused += is_paused(*region);
    if (paused != 0) heaps.push_back_reserved(heap);
  }
  *bytes = 0;
  if (heaps.empty()) return remark(GMM_UNCHANGED, "gmm_resume(): no memory of these tags was paused.");
  for (Heap *heap : heaps) heap->mutex.lock();
  Status status;
  for (Heap *heap : heaps) {
    uint64_t before = 0, after = 0;
    for_each_region(*heap, true, [&](Region &region) {
      for_each_extent(region, [&](Extent &extent) { before += extent.handle.value == 0 ? size_of(extent) : 0; });
      if (!heap->drop_paused(region)) return;
      for_each_extent(region, [&](Extent &extent) { after += extent.handle.value == 0 ? size_of(extent) : 0; });
    });
    heap->count_paused(-static_cast<int64_t>(before - after));
    uint64_t backed = 0;
    for_each_region(*heap, true, [&](Region &region) {
      if (status.ok()) status = back_region(*heap, region, &backed);
    });
    *bytes += backed;
    for (const Entry &entry : paused_)
      if (entry.heap == heap && status.ok()) status = entry.backup->restore(still_live, *heap);
    if (!status.ok()) break;
  }
  for (Heap *heap : heaps) {
    for (Region *region = heap->regions().front(), *next; region != nullptr; region = next) {
      next = heap->regions().next(region);
      if (!is_paused(*region)) continue;
      if (!status.ok()) {
        unback_region(*heap, *region);
        continue;
      }
      for_each_extent(*region, [&](Extent &extent) {
        if (extent.fresh) heap->count_paused(-static_cast<int64_t>(size_of(extent)));
        extent.fresh = extent.newly_mapped = false;
      });
      heap->attach(*region);
    }
    if (!status.ok()) continue;
    heap->end_empty_regions();
    for (uint64_t i = paused_.size(); i-- > 0;)
      if (paused_[i].heap == heap) {
        core_.allocator.destroy(paused_[i].backup);
        paused_.erase(i);
      }
  }
  for (Heap *heap : heaps) heap->mutex.unlock();
  if (!status.ok()) *bytes = 0;
  return status;
}

// --- Questions and ends -----------------------------------------------------------------------------------------

void Pauser::query(gmm_tag tag, gmm_pause_info *out) {
  LockGuard guard(mutex_);
  LockGuard set_guard(heaps_.mutex);
  for (Heap *heap : heaps_.heaps) {
    if (heap->options().tag != tag || heap->options().kind != Kind::kVmm) continue;
    const HeapTotals totals = heap->totals();
    out->active_bytes += totals.held;
    out->paused_bytes += totals.paused;
  }
  for (const Entry &entry : paused_) {
    if (entry.heap->options().tag != tag) continue;
    out->backup_host_bytes += entry.backup->host_bytes();
    out->backup_file_bytes += entry.backup->file_bytes();
  }
}

void Pauser::forget(Heap &heap) {
  LockGuard guard(mutex_);
  for (uint64_t i = paused_.size(); i-- > 0;)
    if (paused_[i].heap == &heap) {
      core_.allocator.destroy(paused_[i].backup);
      paused_.erase(i);
    }
  LockGuard heap_guard(heap.mutex);
  for (Region *region = heap.regions().front(), *next; region != nullptr; region = next) {
    next = heap.regions().next(region);
    if (!is_paused(*region)) continue;
    uint64_t before = 0, after = 0;
    for_each_extent(*region, [&](Extent &extent) { before += extent.handle.value == 0 ? size_of(extent) : 0; });
    const bool there = heap.drop_paused(*region);
    if (there)
      for_each_extent(*region, [&](Extent &extent) { after += extent.handle.value == 0 ? size_of(extent) : 0; });
    heap.count_paused(-static_cast<int64_t>(before - after));
    if (there && region->extents.empty()) heap.attach(*region);
  }
}

void Pauser::clear() {
  LockGuard guard(mutex_);
  while (!paused_.empty()) core_.allocator.destroy(paused_.pop_back().backup);
}

}  // namespace gmm
