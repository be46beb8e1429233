// SPDX-License-Identifier: Apache-2.0
// Memory from the driver and back.
#include <cinttypes>

#include "engine/heap.h"

namespace gmm {
namespace {

constexpr uint64_t kMaximumStep = uint64_t{256} << 20;
constexpr uint64_t kRegionSize = uint64_t{32} << 30;

uint64_t round_to_extent(uint64_t bytes) { return (bytes + kExtentAlignment - 1) & ~(kExtentAlignment - 1); }

}  // namespace

uint64_t Heap::growth_step() const {
  uint64_t step = round_to_extent(own_ledger_.held() / 16);
  if (step < kExtentAlignment) step = kExtentAlignment;
  if (step > kMaximumStep) step = kMaximumStep;
  return step < options_.minimum_extent ? round_to_extent(options_.minimum_extent) : step;
}

// Charges *wanted, or only `bytes` when the limits allow no more; *wanted says which.
Status Heap::charge(uint64_t bytes, uint64_t *wanted) {
  if (*wanted > bytes && ledgers_.charge(*wanted) == nullptr) return Status();
  *wanted = bytes;
  Ledger *full = ledgers_.charge(bytes);
  if (full == nullptr) return Status();
  return fail(GMM_ERROR_LIMIT_EXCEEDED,
              "%" PRIu64 " more bytes from the driver were asked for, but a limit of %" PRIu64
              " bytes is set and %" PRIu64 " are held; free or trim memory, or raise the limit with gmm_set_limit().",
              bytes, full->limit(), full->held());
}

Status Heap::grow(uint64_t count, uint64_t alignment, StreamKey key, Span **out) {
  const uint64_t bytes = round_to_extent(count * kGranule);
  // Whole free extents that are too small or lie elsewhere go back first, where their work is done.
  uint64_t released = 0;
  if (core_.deferred.load(std::memory_order_relaxed) == 0) release_free_locked(bytes, false, &released).ignore();
  Span *run = nullptr;
  if (options_.kind == Kind::kVmm)
    GMM_TRY(grow_vmm(count * kGranule, alignment, growth_step(), &run));
  else
    GMM_TRY(grow_plain(bytes, growth_step(), false, &run));
  // The run may have taken in free neighbours.
  if (run->streams != 0) {
    MessageGuard keep;
    if (!streams_.put_behind(key, run->streams).ok()) GMM_TRY(streams_.wait(run->streams));
    run->streams = 0;
  }
  *out = run;
  return Status();
}

// Adds memory for a run of `bytes`, where it takes least: behind a free run that ends at unbacked addresses.
Status Heap::grow_vmm(uint64_t bytes, uint64_t alignment, uint64_t step, Span **out) {
  Span *best = nullptr;
  uint64_t best_bytes = UINT64_MAX;
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region)) {
    if (region->paused.load(std::memory_order_relaxed) != 0 || region->dedicated) continue;
    for_each_span(*region, [&](Span &hole) {
      if (!hole.is(SpanState::kUnbacked)) return;
      Span *before = neighbour_before(&hole);
      Span *after = neighbour_after(&hole);
      uint64_t have = 0;
      if (alignment <= kGranule && before != nullptr && before->is(SpanState::kFree)) have = before->bytes();
      uint64_t need = have >= bytes ? kExtentAlignment : round_to_extent(bytes - have);
      if (need > hole.bytes()) {
        need = hole.bytes();
        if (after == nullptr || !after->is(SpanState::kFree) || have + need + after->bytes() < bytes) return;
      }
      if (need < best_bytes) {
        best = &hole;
        best_bytes = need;
      }
    });
  }
  if (best == nullptr) {
    Region *region = nullptr;
    GMM_TRY(reserve_region(round_to_extent(bytes), false, &region));
    best = span_at(region->base.load(std::memory_order_relaxed));
    best_bytes = round_to_extent(bytes);
  }
  uint64_t wanted = best_bytes < step ? step : best_bytes;
  if (wanted > best->bytes()) wanted = best->bytes();
  GMM_TRY(charge(best_bytes, &wanted));
  Span *run = nullptr;
  Status status = back(best, wanted, &run);
  if (!status.ok() && wanted > best_bytes && status.code() == GMM_ERROR_OUT_OF_MEMORY) {
    ledgers_.refund(wanted - best_bytes);
    wanted = best_bytes;
    status = back(best, wanted, &run);
  }
  if (!status.ok()) {
    ledgers_.refund(wanted);
    return status;
  }
  // One run with both neighbours, whatever streams they wait for.
  if (Span *before = neighbour_before(run); before != nullptr && before->is(SpanState::kFree)) {
    unlist_run(before);
    run = merge(before, run);
  }
  if (Span *after = neighbour_after(run); after != nullptr && after->is(SpanState::kFree)) {
    unlist_run(after);
    run = merge(run, after);
  }
  list_run(run);
  *out = run;
  return Status();
}

// Backs the first `bytes` of unbacked addresses by one new extent; *out is a free span in no list. Charged by the caller.
Status Heap::back(Span *unbacked, uint64_t bytes, Span **out) {
  Backend &backend = *core_.backend;
  void *base = reinterpret_cast<void *>(unbacked->begin());
  Extent *extent = core_.extents.take();
  if (extent == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  Span *rest = nullptr;
  if (unbacked->bytes() > bytes && !split(unbacked, bytes, &rest)) {
    core_.extents.put(extent);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  }
  PhysicalHandle handle;
  Status status = backend.create(options_.device, bytes, &handle);
  if (status.ok()) {
    status = backend.map(base, bytes, handle);
    if (status.ok()) {
      status = backend.set_access(base, bytes, options_.device, options_.peers);
      if (!status.ok()) {
        MessageGuard keep;
        backend.unmap(base, bytes).ignore();
      }
    }
    if (!status.ok()) {
      MessageGuard keep;
      backend.release(handle).ignore();
    }
  }
  if (!status.ok()) {
    if (rest != nullptr) merge(unbacked, rest);
    core_.extents.put(extent);
    return status;
  }
  extent->base.store(unbacked->begin(), std::memory_order_relaxed);
  extent->size.store(bytes, std::memory_order_relaxed);
  extent->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
  extent->handle = handle;
  extent->location = options_.device;
  extent->exported = false;
  extent->mapped = true;
  extent->region.store(unbacked->region, std::memory_order_release);
  unbacked->region->extents.push_back(extent);
  core_.page_map.set_extent(unbacked->begin(), bytes, extent);
  ++extent_count_;
  unbacked->state.store(SpanState::kFree, std::memory_order_relaxed);
  unbacked->streams = 0;
  *out = unbacked;
  return Status();
}

// Addresses for a VMM heap: generous, as they cost next to nothing, or exactly `bytes`.
Status Heap::reserve_region(uint64_t bytes, bool exact, Region **out) {
  uint64_t size = exact || bytes > kRegionSize ? bytes : kRegionSize;
  void *base = nullptr;
  Status status = core_.backend->reserve(size, &base);
  while (!status.ok() && size > bytes) {
    size = size / 2 < bytes ? bytes : size / 2;
    status = core_.backend->reserve(size, &base);
  }
  GMM_TRY(status);
  Region *region = core_.regions.take();
  Span *span = nullptr;
  if (region != nullptr && core_.page_map.prepare(reinterpret_cast<uintptr_t>(base), size)) {
    region->heap.store(this, std::memory_order_relaxed);
    region->base.store(reinterpret_cast<uintptr_t>(base), std::memory_order_relaxed);
    region->size.store(size, std::memory_order_relaxed);
    span = new_span(SpanState::kUnbacked, reinterpret_cast<uintptr_t>(base), size, region);
  }
  if (span == nullptr) {
    MessageGuard keep;
    core_.backend->unreserve(base, size).ignore();
    if (region != nullptr) core_.regions.put(region);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes of addresses.",
                size);
  }
  region->dedicated = false;
  region->live_spans = 0;
  core_.page_map.set_ends(span->begin(), size, span);
  regions_.push_back(region);
  *out = region;
  return Status();
}

// One driver allocation of a plain kind; *out is listed, or, when dedicated, in no list.
Status Heap::grow_plain(uint64_t bytes, uint64_t step, bool dedicated, Span **out) {
  uint64_t wanted = dedicated || bytes > step ? bytes : step;
  GMM_TRY(charge(bytes, &wanted));
  Allocation allocation;
  Status status = core_.backend->allocate(options_.kind, options_.device, wanted, &allocation);
  if (!status.ok() && wanted > bytes &&
      (status.code() == GMM_ERROR_OUT_OF_MEMORY || status.code() == GMM_ERROR_OUT_OF_HOST_MEMORY)) {
    ledgers_.refund(wanted - bytes);
    wanted = bytes;
    status = core_.backend->allocate(options_.kind, options_.device, wanted, &allocation);
  }
  if (!status.ok()) {
    ledgers_.refund(wanted);
    return status;
  }
  const uintptr_t base = reinterpret_cast<uintptr_t>(allocation.base);
  Region *region = core_.regions.take();
  Extent *extent = core_.extents.take();
  Span *span = nullptr;
  if (region != nullptr && extent != nullptr && core_.page_map.prepare(base, wanted))
    span = new_span(SpanState::kFree, base, wanted, region);
  if (span == nullptr) {
    MessageGuard keep;
    core_.backend->deallocate(allocation).ignore();
    if (region != nullptr) core_.regions.put(region);
    if (extent != nullptr) core_.extents.put(extent);
    ledgers_.refund(wanted);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes.", wanted);
  }
  region->heap.store(this, std::memory_order_relaxed);
  region->base.store(base, std::memory_order_relaxed);
  region->size.store(wanted, std::memory_order_relaxed);
  region->allocation = allocation;
  region->dedicated = dedicated;
  region->live_spans = 0;
  extent->base.store(base, std::memory_order_relaxed);
  extent->size.store(wanted, std::memory_order_relaxed);
  extent->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
  extent->handle = PhysicalHandle{};
  extent->location = options_.device;
  extent->exported = false;
  extent->mapped = true;
  extent->region.store(region, std::memory_order_release);
  region->extents.push_back(extent);
  regions_.push_back(region);
  core_.page_map.set_ends(base, wanted, span);
  core_.page_map.set_extent(base, wanted, extent);
  ++extent_count_;
  if (!dedicated) list_run(span);
  *out = span;
  return Status();
}

// --- Back to the driver --------------------------------------------------------------------------------

// Forgets a region whose memory is gone: one span is left, and it is in no list.
void Heap::end_region(Region *region) {
  Span *span = span_at(region->base.load(std::memory_order_relaxed));
  core_.page_map.set(region->base.load(std::memory_order_relaxed), region->size.load(std::memory_order_relaxed),
                     nullptr);
  end_span(span);
  if (options_.kind == Kind::kVmm) {
    MessageGuard keep;
    core_.backend
        ->unreserve(reinterpret_cast<void *>(region->base.load(std::memory_order_relaxed)),
                    region->size.load(std::memory_order_relaxed))
        .ignore();  // addresses that the driver keeps are lost to nobody but the address space
  }
  List<Region, HeapRegions>::remove(region);
  region->size.store(0, std::memory_order_relaxed);
  region->heap.store(nullptr, std::memory_order_relaxed);
  core_.regions.put(region);
}

Status Heap::release_plain_region(Region *region) {
  GMM_TRY(core_.backend->deallocate(region->allocation));
  const uint64_t size = region->size.load(std::memory_order_relaxed);
  Extent *extent = region->extents.front();
  if (extent == nullptr) __builtin_unreachable();
  List<Extent, RegionExtents>::remove(extent);
  core_.page_map.set_extent(extent->base.load(std::memory_order_relaxed), size, nullptr);
  extent->region.store(nullptr, std::memory_order_relaxed);
  core_.extents.put(extent);
  --extent_count_;
  ledgers_.refund(size);
  end_region(region);
  return Status();
}

// One extent out of a free run that is in no list; what is left of the run before it is listed, *rest is what follows, unlisted.
Status Heap::release_extent(Extent *extent, Span *run, Span **rest) {
  const uintptr_t base = extent->base.load(std::memory_order_relaxed);
  const uint64_t size = extent->size.load(std::memory_order_relaxed);
  Span *middle = run;
  *rest = nullptr;
  Span *whole = run;
  if (base > run->begin() && !split(run, base - run->begin(), &middle)) {
    *rest = whole;
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to give an extent back.");
  }
  if (middle->bytes() > size && !split(middle, size, rest)) {
    *rest = middle == whole ? whole : merge(whole, middle);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to give an extent back.");
  }
  Status status;
  if (extent->mapped) status = core_.backend->unmap(reinterpret_cast<void *>(base), size);
  if (!status.ok()) {
    if (*rest != nullptr) merge(middle, *rest);
    *rest = middle == whole ? whole : merge(whole, middle);
    return status;
  }
  if (middle != whole) list_run(whole);
  // The pages are out of reach now; a release that the driver refuses loses them, and says so.
  if (extent->handle.value != 0) status = core_.backend->release(extent->handle);
  if (!status.ok()) core_.log.write(LogLevel::kError, "An unmapped handle could not be released: %s", last_message());
  core_.page_map.set_extent(base, size, nullptr);
  extent->region.store(nullptr, std::memory_order_relaxed);
  List<Extent, RegionExtents>::remove(extent);
  if (extent->mapped) ledgers_.refund(size);
  extent->handle = PhysicalHandle{};
  core_.extents.put(extent);
  --extent_count_;
  middle->state.store(SpanState::kUnbacked, std::memory_order_relaxed);
  middle->streams = 0;
  if (Span *before = neighbour_before(middle); before != nullptr && before->is(SpanState::kUnbacked))
    middle = merge(before, middle);
  if (Span *after = neighbour_after(middle); after != nullptr && after != *rest && after->is(SpanState::kUnbacked))
    merge(middle, after);
  return Status();
}

// Every extent that lies in the run whole.
Status Heap::release_run_extents(Span *run, uint64_t at_most, uint64_t *released) {
  Status status;
  uintptr_t at = run->begin();
  const uintptr_t end = run->end();
  unlist_run(run);
  while (run != nullptr && at < end && *released < at_most && status.ok()) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    const uintptr_t base = extent->base.load(std::memory_order_relaxed);
    const uint64_t size = extent->size.load(std::memory_order_relaxed);
    at = base + size;
    if (base < run->begin() || at > end || extent->importers.load(std::memory_order_relaxed) != 0) continue;
    status = release_extent(extent, run, &run);
    if (status.ok()) *released += size;
  }
  if (run != nullptr) list_run(run);
  return status;
}

Status Heap::release_free_locked(uint64_t at_most, bool wait, uint64_t *released) {
  // Neighbours that different streams freed hide a whole extent; who waits may see them as one.
  if (wait) merge_all();
  Vector<Span *> runs(core_.allocator);
  const auto collect = [&](Span *run) {
    if (run->bytes() >= kExtentAlignment && !runs.push_back(run)) return;
  };
  free_.for_each(collect);
  for (Span *run = dedicated_.front(); run != nullptr; run = dedicated_.next(run)) collect(run);
  Status status;
  for (Span *run : runs) {
    Region *region = run->region;
    const bool plain = options_.kind != Kind::kVmm;
    if (*released >= at_most && !region->dedicated) continue;
    if (plain && (region->live_spans != 0 || run->bytes() != region->size.load(std::memory_order_relaxed) ||
                  region->extents.front()->importers.load(std::memory_order_relaxed) != 0))
      continue;
    if (run->streams != 0 && !streams_.passed(run->streams)) {
      if (!wait) continue;
      status = streams_.wait(run->streams);
      if (!status.ok()) return status;
    }
    if (plain) {
      const uint64_t bytes = run->bytes();
      unlist_run(run);
      status = release_plain_region(region);
      if (!status.ok()) {
        list_run(run);
        return status;
      }
      *released += bytes;
      continue;
    }
    const bool dedicated = region->dedicated;
    status = release_run_extents(run, dedicated ? UINT64_MAX : at_most, released);
    if (!status.ok()) return status;
    if (dedicated && region->extents.empty()) end_region(region);
  }
  return status;
}

// Extents of a paused region that hold no live block any more: their addresses become unbacked.
void Heap::drop_paused(Region &region) {
  // Collected first: giving an extent up merges unbacked spans, which a walk could stand in.
  Vector<Span *> runs(core_.allocator);
  for_each_span(region, [&](Span &span) {
    if (span.is(SpanState::kFree) && !runs.push_back(&span)) return;  // what is not collected is only kept longer
  });
  for (Span *run : runs) {
    uint64_t dropped = 0;
    release_run_extents(run, UINT64_MAX, &dropped).ignore();  // likewise
  }
}

Status Heap::release_free(uint64_t at_most, bool wait, uint64_t *released) {
  LockGuard guard(mutex);
  return release_free_locked(at_most, wait, released);
}

Status Heap::check_empty() {
  drain_caches(true);
  free_kept_aside();
  LockGuard guard(mutex);
  uint64_t spans = 0;
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region))
    spans += region->live_spans;
  if (spans == 0) return Status();
  return fail(GMM_ERROR_BUSY,
              "The heap still has live blocks in %" PRIu64 " spans; free them before gmm_heap_destroy().", spans);
}

Status Heap::close(bool force) {
  if (!force) GMM_TRY(check_empty());
  drain_caches(true);
  LockGuard guard(mutex);
  if (!force) {
    uint64_t released = 0;
    GMM_TRY(release_free_locked(UINT64_MAX, true, &released));
  }
  Status first;
  const auto note = [&](Status status) {
    if (!status.ok() && first.ok()) first = status;
  };
  while (Region *region = regions_.front()) {
    const uintptr_t base = region->base.load(std::memory_order_relaxed);
    const uint64_t size = region->size.load(std::memory_order_relaxed);
    while (Extent *extent = region->extents.pop_front()) {
      void *address = reinterpret_cast<void *>(extent->base.load(std::memory_order_relaxed));
      const uint64_t bytes = extent->size.load(std::memory_order_relaxed);
      if (options_.kind != Kind::kVmm) {
        note(core_.backend->deallocate(region->allocation));
      } else {
        if (extent->mapped) note(core_.backend->unmap(address, bytes));
        if (extent->handle.value != 0) note(core_.backend->release(extent->handle));
      }
      if (extent->mapped) ledgers_.refund(bytes);
      extent->handle = PhysicalHandle{};
      core_.page_map.set_extent(reinterpret_cast<uintptr_t>(address), bytes, nullptr);
      extent->region.store(nullptr, std::memory_order_relaxed);
      core_.extents.put(extent);
      --extent_count_;
    }
    // All spans go, whatever they are; the one that is left at the base ends with the region.
    Span *first_span = span_at(base);
    for (uintptr_t at = first_span->end(); at < base + size;) {
      Span *span = span_at(at);
      at = span->end();
      drop_span(span);
    }
    if (first_span->is(SpanState::kFree) && region->paused.load(std::memory_order_relaxed) == 0) unlist_run(first_span);
    if (first_span->is(SpanState::kSlab) && first_span->listed) {
      List<Span, SpanOrder>::remove(first_span);
      first_span->listed = false;
    }
    if (region->paused.load(std::memory_order_relaxed) != 0) {
      region->paused.store(0, std::memory_order_relaxed);
      fast.careful.fetch_sub(1, std::memory_order_relaxed);
    }
    first_span->size.store(size, std::memory_order_relaxed);
    region->live_spans = 0;
    end_region(region);
  }
  return first;
}

void Heap::drop_span(Span *span) {
  if (span->is(SpanState::kFree)) {
    unlist_run(span);
  } else if (span->listed) {
    List<Span, SpanOrder>::remove(span);
    span->listed = false;
  }
  end_span(span);
}

}  // namespace gmm
