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
  if (core_.deferred.load(std::memory_order_relaxed) == 0) release_free_locked(bytes, &released).ignore();
  Span *run = nullptr;
  if (options_.kind == Kind::kVmm)
    GMM_TRY(grow_vmm(count * kGranule, alignment, growth_step(), &run));
  else
    GMM_TRY(grow_plain(bytes, growth_step(), false, &run));
  // The run may have taken in free neighbours. What is left of it stays ordered for this stream.
  if (run->streams != 0) {
    MessageGuard keep;
    if (streams_.put_behind(key, run->streams).ok()) {
      run->streams = streams_.bit_of(key);
    } else {
      GMM_TRY(streams_.wait(run->streams));
      run->streams = 0;
    }
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
  Region *fresh = nullptr;
  if (best == nullptr) {
    GMM_TRY(reserve_region(round_to_extent(bytes), false, &fresh));
    best = span_at(fresh->base.load(std::memory_order_relaxed));
    best_bytes = round_to_extent(bytes);
  }
  uint64_t wanted = best_bytes < step ? step : best_bytes;
  if (wanted > best->bytes()) wanted = best->bytes();
  Status status = charge(best_bytes, &wanted);
  if (!status.ok()) {
    if (fresh != nullptr) end_region(fresh);
    return status;
  }
  Span *run = nullptr;
  status = back(best, wanted, &run);
  if (!status.ok() && wanted > best_bytes && status.code() == GMM_ERROR_OUT_OF_MEMORY) {
    ledgers_.refund(wanted - best_bytes);
    wanted = best_bytes;
    status = back(best, wanted, &run);
  }
  if (!status.ok()) {
    ledgers_.refund(wanted);
    if (fresh != nullptr) end_region(fresh);
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
      if (!status.ok()) core_.leftovers.unmap(backend, base, bytes);
    }
    if (!status.ok()) core_.leftovers.release(backend, handle);
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
    core_.leftovers.unreserve(*core_.backend, base, size);
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
    core_.leftovers.deallocate(*core_.backend, allocation);
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

}  // namespace gmm
