// SPDX-License-Identifier: Apache-2.0
// Memory from the driver and back.
#include <cinttypes>

#include "engine/heap/heap.h"

namespace gmm {
namespace {

constexpr uint64_t kMaximumStep = uint64_t{256} << 20;
constexpr uint64_t kRegionSize = uint64_t{32} << 30;

uint64_t round_to_extent(uint64_t bytes) { return (bytes + kExtentAlignment - 1) & ~(kExtentAlignment - 1); }

}  // namespace

// For kinds whose memory cannot be moved: the heap grows by a part of what it holds.
uint64_t Heap::plain_step() const {
  uint64_t step = round_to_extent(own_quota_.held() / 16);
  if (step < kExtentAlignment) step = kExtentAlignment;
  if (step > kMaximumStep) step = kMaximumStep;
  return step < options_.minimum_extent ? round_to_extent(options_.minimum_extent) : step;
}

// Charges *wanted, or only `bytes` when the limits allow no more; *wanted says which.
Status Heap::charge(uint64_t bytes, uint64_t *wanted) {
  if (*wanted > bytes && quotas_.charge(*wanted) == nullptr) return Status();
  *wanted = bytes;
  Quota *full = quotas_.charge(bytes);
  if (full == nullptr) return Status();
  return fail(GMM_ERROR_LIMIT_EXCEEDED,
              "%" PRIu64 " more bytes from the driver were asked for, but a limit of %" PRIu64
              " bytes is set and %" PRIu64 " are held; free or trim memory, or raise the limit with gmm_limit_set().",
              bytes, full->limit(), full->held());
}

Status Heap::grow(uint64_t count, uint64_t alignment, StreamKey key, Span **out) {
  Span *run = nullptr;
  if (options_.kind == Kind::kVmm) {
    GMM_TRY(grow_vmm(count * kGranule, alignment, key, &run));
  } else {
    const uint64_t bytes = round_to_extent(count * kGranule);
    // Whole free extents that are too small or lie elsewhere go back first, where their work is done.
    uint64_t released = 0;
    if (core_.defer_depth.load(std::memory_order_relaxed) == 0) release_free_locked(bytes, &released).ignore();
    GMM_TRY(grow_plain(bytes, plain_step(), false, &run));
  }
  growth_.grew();
  *out = run;
  return Status();
}

// The most that was live at once and held something, with the block that is wanted.
uint64_t Heap::live_peak(uint64_t bytes) {
  const uint64_t live = caches.seen_live() + bytes;
  const uint64_t peak = growth_.peak(caches.seen_peak_live(), live);
  return peak > paused_ ? peak - paused_ : 0;  // paused blocks are live and hold nothing
}

// `allowed`: streams that free memory at the window's edges may belong to.
Heap::Window Heap::find_window(uint64_t bytes, uint64_t alignment, uint64_t allowed) {
  Window best;
  best.bytes = UINT64_MAX;
  const auto free_bytes = [&](const Span *span) {
    const bool usable = alignment <= kGranule && span != nullptr && span->is(SpanState::kFree);
    return usable && (span->streams & ~allowed) == 0 ? span->bytes() : 0;
  };
  const auto missing = [&](uint64_t have) { return have >= bytes ? kExtentAlignment : round_to_extent(bytes - have); };
  for (Span *hole = runs_.holes().front(); hole != nullptr; hole = runs_.holes().next(hole)) {
    if (hole->region->paused.load(std::memory_order_relaxed) != 0) continue;
    const uint64_t before = free_bytes(hole->before), after = free_bytes(hole->after);
    const uint64_t size = hole->bytes();
    if (missing(before) <= size) {
      if (missing(before) < best.bytes) best = Window{hole, 0, missing(before)};
    } else if (before + size + after >= bytes && size < best.bytes) {
      best = Window{hole, 0, size};
    }
    if (missing(after) < size && missing(after) < best.bytes && after != 0)
      best = Window{hole, size - missing(after), missing(after)};
  }
  return best;
}

// Puts the stream behind those that freed the memory at the window's edges. A stream in graph capture cannot wait:
// false, nothing changed.
bool Heap::take_edges(const Window &window, StreamKey key) {
  MessageGuard keep;
  Span *edges[2] = {};
  if (window.offset == 0) edges[0] = window.hole->before;
  if (window.offset + window.bytes == window.hole->bytes()) edges[1] = window.hole->after;
  uint64_t bits = 0;
  for (const Span *edge : edges)
    if (edge != nullptr && edge->is(SpanState::kFree)) bits |= edge->streams;
  if (!streams_.put_behind(key, bits).ok()) return false;
  for (Span *edge : edges)
    if (edge != nullptr && edge->is(SpanState::kFree) && edge->streams != 0) order_behind(edge, streams_.bit_of(key));
  return true;
}

// Adds memory for a run of `bytes`, where it takes least; *out is the run with its free neighbours, listed.
Status Heap::grow_vmm(uint64_t bytes, uint64_t alignment, StreamKey key, Span **out) {
  Window window = find_window(bytes, alignment, ~uint64_t{0});
  if (window.hole != nullptr && !take_edges(window, key)) window = find_window(bytes, alignment, streams_.own_bit(key));
  Region *fresh = nullptr;
  if (window.hole == nullptr) {
    window.bytes = round_to_extent(bytes);
    GMM_TRY(reserve_region(window.bytes, false, &fresh));
    window.hole = fresh->first;
  }
  Fill fill;
  fill.hole = window.hole;
  runs_.unlist(fill.hole);
  if (window.offset != 0) {
    if (!runs_.split(window.hole, window.offset, &fill.hole)) {
      runs_.list_hole(window.hole);
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
    }
    runs_.list_hole(window.hole);
  }
  const uint64_t held = own_quota_.held(), peak = live_peak(bytes);
  // Inside gmm_defer_begin() nothing goes back to the driver, not even for a moment.
  const bool may_move = core_.defer_depth.load(std::memory_order_relaxed) == 0;
  if (may_move)
    if (const uint64_t moves = growth_.to_move(held, window.bytes, peak); moves != 0)
      move_free_extents(&fill, moves, bytes);
  growth_.is_behind(false);
  Status status;
  uint64_t moved = fill.bytes;
  for (bool again = true; fill.bytes < window.bytes;) {
    const uint64_t need = window.bytes - fill.bytes;
    uint64_t wanted = growth_.to_take(held, need, peak, options_.minimum_extent);
    if (wanted > fill.hole->bytes() || !again) wanted = need;
    const uint64_t before = fill.bytes;
    status = charge(need, &wanted);
    if (status.ok()) status = add_extents(&fill, wanted, bytes);
    if (status.ok()) break;
    // Moving free memory is the way to serve the need without more; and a smaller step may do.
    if (!again || (status.code() != GMM_ERROR_OUT_OF_MEMORY && status.code() != GMM_ERROR_LIMIT_EXCEEDED)) break;
    again = false;
    const uint64_t so_far = fill.bytes;
    if (fill.bytes < window.bytes) move_free_extents(&fill, window.bytes - fill.bytes, bytes);
    moved += fill.bytes - so_far;
    if (fill.bytes >= window.bytes) status = Status();
    if (fill.bytes == before && wanted == need) break;
  }
  if (fill.hole != nullptr) runs_.make_hole(fill.hole);
  if (fill.filled == nullptr) {
    if (fresh != nullptr) end_region(fresh);
    return status;
  }
  if (!status.ok()) {
    // What was made goes back at once: others may need it. The driver's refusal of that only keeps it here.
    MessageGuard keep;
    uint64_t released = 0;
    const uint64_t made = fill.bytes - moved;
    runs_.list(fill.filled);
    if (made != 0) release_run_extents(fill.filled, made, &released).ignore();
    return status;
  }
  // One run with both neighbours, where they are free for this stream.
  Span *run = fill.filled;
  const uint64_t own = streams_.own_bit(key);
  const auto usable = [&](const Span *span) {
    return span != nullptr && span->is(SpanState::kFree) && (span->streams & ~own) == 0;
  };
  if (Span *before = run->before; usable(before)) {
    runs_.unlist(before);
    run = runs_.merge(before, run);
  }
  if (Span *after = run->after; usable(after)) {
    runs_.unlist(after);
    run = runs_.merge(run, after);
  }
  runs_.list(run);
  *out = run;
  return status;
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
    span = runs_.new_span(SpanState::kUnbacked, reinterpret_cast<uintptr_t>(base), size, region);
  }
  if (span == nullptr) {
    core_.deferred_release.unreserve(*core_.backend, base, size);
    if (region != nullptr) core_.regions.put(region);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes of addresses.",
                size);
  }
  region->dedicated = false;
  region->live_spans = 0;
  runs_.add_region(region, span);
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
    quotas_.refund(wanted - bytes);
    wanted = bytes;
    status = core_.backend->allocate(options_.kind, options_.device, wanted, &allocation);
  }
  if (!status.ok()) {
    quotas_.refund(wanted);
    return status;
  }
  const uintptr_t base = reinterpret_cast<uintptr_t>(allocation.base);
  Region *region = core_.regions.take();
  Extent *extent = core_.extents.take();
  Span *span = nullptr;
  if (region != nullptr && extent != nullptr && core_.page_map.prepare(base, wanted))
    span = runs_.new_span(SpanState::kFree, base, wanted, region);
  if (span == nullptr) {
    core_.deferred_release.deallocate(*core_.backend, allocation);
    if (region != nullptr) core_.regions.put(region);
    if (extent != nullptr) core_.extents.put(extent);
    quotas_.refund(wanted);
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
  runs_.add_region(region, span);
  core_.page_map.set_extent(base, wanted, extent);
  ++extent_count_;
  if (!dedicated) runs_.list(span);
  *out = span;
  return Status();
}

}  // namespace gmm
