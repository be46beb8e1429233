// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/growth.h"

#include <algorithm>
#include <cinttypes>

#include "base/clock.h"
#include "base/nvtx.h"
#include "base/thread.h"
#include "engine/heap/reclaim.h"

namespace gmm {

// Charges *wanted, or only `bytes` when the limits allow no more; *wanted says which.
Status Growth::charge(uint64_t bytes, uint64_t *wanted) {
  if (*wanted > bytes && quotas_.charge(*wanted) == nullptr) return Status();
  *wanted = bytes;
  const Quota *full = quotas_.charge(bytes);
  if (full == nullptr) return Status();
  return fail(GMM_ERROR_LIMIT_EXCEEDED,
              "%" PRIu64 " more bytes from the driver were asked for, but a limit of %" PRIu64
              " bytes is set and %" PRIu64 " are held; free or trim memory, or raise the limit with gmm_limit_set().",
              bytes, full->limit(), full->held());
}

// The most that was live at once and held something, with the block that is wanted.
uint64_t Growth::live_peak(uint64_t bytes) {
  const HeapTotals totals = caches_.totals();
  policy_.worked(totals.allocations, totals.frees + totals.forgotten, monotonic_ns());
  const uint64_t peak = policy_.peak(totals.peak_live, totals.live_bytes + bytes);
  const uint64_t paused = extents_.paused_bytes();
  return peak > paused ? peak - paused : 0;  // paused blocks are live and hold nothing
}

// The size of each extent when `bytes` are taken for a block. None is smaller than the program said, unless `bytes`
// are.
uint64_t Growth::extent_size(uint64_t bytes, uint64_t block) const {
  const uint64_t least = Extents::rounded(options_.minimum_extent);
  uint64_t size = policy_.extent_size(own_quota_.held(), bytes, block);
  uint64_t count = (bytes + size - 1) / size;
  if (size < least) count = std::max(bytes / least, uint64_t{1}) + 1;
  while (count > 1 && (size < least || (bytes % size != 0 && bytes % size < least))) {
    --count;
    size = Extents::rounded((bytes + count - 1) / count);
  }
  return size;
}

Status Growth::grow(uint64_t bytes, uint64_t alignment, StreamKey key, RunUse use, Span **out) {
  const NvtxRange range("gmm growth", [&] { return bytes; });
  const bool small = in_small_extents(use);
  if (options_.whole_regions())
    return grow_by_allocation(bytes, small ? kExtentAlignment : allocation_step(), false, out);
  // A stream that shares its bit has no mark of its own for what it was put behind.
  const uint64_t own = streams_.own_bit(key);
  Window window = find_window(bytes, alignment, own == 0 ? 0 : ~uint64_t{0});
  if (own != 0 && window.hole != nullptr && !take_edges(window, key)) window = find_window(bytes, alignment, own);
  Extents::Fill fill;
  GMM_TRY(begin_fill(&window, bytes, &fill));
  const uint64_t held = own_quota_.held(), peak = live_peak(bytes);
  // Inside gmm_defer_begin() nothing goes back to the driver, not even for a moment.
  if (core_.defer_depth.load(std::memory_order_relaxed) == 0)
    if (const uint64_t moves = policy_.to_move(held, window.bytes, peak); moves != 0)
      move_free_extents(&fill, moves, bytes, own, false);
  policy_.is_behind(false);
  const uint64_t least = small ? 0 : Extents::rounded(options_.minimum_extent);
  Status status;
  uint64_t moved = fill.bytes;
  for (bool again = true; fill.bytes < window.bytes;) {
    const uint64_t need = window.bytes - fill.bytes;
    uint64_t wanted = small ? need : policy_.to_take(held, need, peak, options_.minimum_extent);
    if (wanted > fill.hole->bytes()) wanted = std::max(need, least <= fill.hole->bytes() ? least : 0);
    if (!again) wanted = need;
    const uint64_t before = fill.bytes;
    status = charge(need, &wanted);
    const uint64_t each = small ? kExtentAlignment : extent_size(wanted, bytes);
    if (status.ok()) status = extents_.add(&fill, wanted, each);
    if (status.ok()) break;
    // Moving free memory is the way to serve the need without more; and a smaller step may do.
    if (!again || (status.code() != GMM_ERROR_OUT_OF_MEMORY && status.code() != GMM_ERROR_LIMIT_EXCEEDED)) break;
    again = false;
    const uint64_t so_far = fill.bytes;
    if (fill.bytes < window.bytes) move_free_extents(&fill, window.bytes - fill.bytes, bytes, own, true);
    moved += fill.bytes - so_far;
    if (fill.bytes >= window.bytes) status = Status();
    if (fill.bytes == before && wanted == need) break;
  }
  extents_.end_fill(fill);
  if (fill.filled == nullptr) {
    extents_.end_empty_regions();
    return status;
  }
  if (!status.ok()) {
    give_up(fill.filled, fill.bytes - moved);
    return status;
  }
  *out = with_neighbours(fill.filled, key);
  policy_.grew();
  return status;
}

Status Growth::grow_dedicated(uint64_t bytes, const CommTraits *comm, Span **out) {
  const NvtxRange range("gmm growth", [&] { return bytes; });
  const uint64_t granularity = comm == nullptr ? kExtentAlignment : comm->granularity;
  bytes = (bytes + granularity - 1) & ~(granularity - 1);
  return grow_by_allocation(bytes, bytes, true, out, comm);
}

// --- Ahead of all blocks ---------------------------------------------------------------------------------------------

Status Growth::reserve(uint64_t bytes) {
  GMM_TRY(extents_.touch_all());
  const uint64_t held = extents_.pooled_bytes();
  if (held >= bytes) return Status();
  const uint64_t missing = Extents::rounded(bytes - held);
  const NvtxRange range("gmm growth", [&] { return missing; });
  uint64_t wanted = missing;
  GMM_TRY(charge(missing, &wanted));
  Span *run = nullptr;
  Status status = reserve_charged(missing, &run);
  if (status.ok()) status = extents_.touch(run->begin(), run->bytes());
  if (status.ok()) {
    runs_.make_free(run);
    return status;
  }
  if (run != nullptr) give_up(run, run->bytes());
  MessageGuard message_guard;
  extents_.end_empty_regions();
  return status;
}

// Charged by the caller. *out, in no list, is what was made, also where it is not all. It lies where one run can hold
// it; of a kind with whole regions it is one allocation, as a block lies in one.
Status Growth::reserve_charged(uint64_t bytes, Span **out) {
  Status status;
  Extents::Fill fill;
  if (options_.whole_regions()) {
    status = extents_.allocate(bytes, false, out);
  } else {
    Window window = find_window(bytes, kExtentAlignment, 0);
    status = begin_fill(&window, bytes, &fill);
  }
  if (!status.ok()) quotas_.refund(bytes);
  if (fill.hole == nullptr) return status;
  status = extents_.add(&fill, bytes, extent_size(bytes, 0));
  extents_.end_fill(fill);
  *out = fill.filled;
  return status;
}

// New memory, in no list, goes back, up to so many bytes: others may need it. It stays where the driver refuses that,
// and a trim offers it again.
void Growth::give_up(Span *run, uint64_t at_most) {
  MessageGuard message_guard;
  if (options_.kind != Kind::kVmm) {
    if (!extents_.deallocate(run->region).ok()) runs_.list(run);
    return;
  }
  uint64_t released = 0;
  runs_.list(run);
  if (at_most != 0) extents_.release_in(run, at_most, &released, nullptr).ignore();
}

// --- By one driver allocation ----------------------------------------------------------------------------------------

// The heap grows by a part of what it holds, as its memory cannot be moved.
uint64_t Growth::allocation_step() const {
  constexpr uint64_t kMaximumStep = uint64_t{256} << 20;
  const uint64_t step = std::clamp(Extents::rounded(own_quota_.held() / 16), kExtentAlignment, kMaximumStep);
  return std::max(step, Extents::rounded(options_.minimum_extent));
}

Status Growth::grow_by_allocation(uint64_t bytes, uint64_t step, bool dedicated, Span **out, const CommTraits *comm) {
  bytes = Extents::rounded(bytes);
  if (!dedicated) {
    // Whole free allocations that are too small go back first, where their work is done.
    uint64_t released = 0;
    if (core_.defer_depth.load(std::memory_order_relaxed) == 0) reclaim_.release_locked(bytes, &released).ignore();
  }
  uint64_t wanted = bytes > step ? bytes : step;
  GMM_TRY(charge(bytes, &wanted));
  Status status = extents_.allocate(wanted, dedicated, out, comm);
  if (wanted > bytes && (status.code() == GMM_ERROR_OUT_OF_MEMORY || status.code() == GMM_ERROR_OUT_OF_HOST_MEMORY)) {
    quotas_.refund(wanted - bytes);
    wanted = bytes;
    status = extents_.allocate(wanted, dedicated, out, comm);
  }
  if (!status.ok()) {
    quotas_.refund(wanted);
    return status;
  }
  if (dedicated) return status;
  runs_.list(*out);
  policy_.grew();
  return status;
}

// --- By extents, new or from elsewhere -------------------------------------------------------------------------------

// `allowed`: streams that free memory at the window's edges may belong to.
Growth::Window Growth::find_window(uint64_t bytes, uint64_t alignment, uint64_t allowed) {
  Window best;
  best.bytes = UINT64_MAX;
  const auto free_bytes = [&](const Span *span) {
    const bool usable = alignment <= kGranule && span != nullptr && span->is(SpanState::kFree);
    return usable && (span->streams & ~allowed) == 0 ? span->bytes() : 0;
  };
  const auto missing = [&](uint64_t have) { return have >= bytes ? kExtentAlignment : Extents::rounded(bytes - have); };
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

// Takes the addresses of a window out of the holes; where there is no hole, those of a fresh region.
Status Growth::begin_fill(Window *window, uint64_t bytes, Extents::Fill *fill) {
  if (window->hole == nullptr) {
    Region *fresh = nullptr;
    *window = Window{nullptr, 0, Extents::rounded(bytes)};
    GMM_TRY(extents_.reserve(window->bytes, Extents::kRegionSize, &fresh));
    window->hole = fresh->first;
  }
  return extents_.begin_fill(window->hole, window->offset, fill);
}

// Puts the stream behind those that freed the memory at the window's edges. A stream in graph capture cannot wait:
// false, nothing changed.
bool Growth::take_edges(const Window &window, StreamKey key) {
  MessageGuard message_guard;
  Span *edges[2] = {};
  if (window.offset == 0) edges[0] = window.hole->before;
  if (window.offset + window.bytes == window.hole->bytes()) edges[1] = window.hole->after;
  uint64_t bits = 0;
  for (const Span *edge : edges)
    if (edge != nullptr && edge->is(SpanState::kFree)) bits |= edge->streams;
  if (!streams_.put_behind(key, bits).ok()) return false;
  for (Span *edge : edges)
    if (edge != nullptr && edge->is(SpanState::kFree) && edge->streams != 0) streams_.order(edge, streams_.bit_of(key));
  return true;
}

// The run, which is in no list, becomes one with both neighbours, where they are free for this stream; listed.
Span *Growth::with_neighbours(Span *run, StreamKey key) {
  const uint64_t own = streams_.own_bit(key);
  run = runs_.join(run, [own](const Span &each) { return each.is(SpanState::kFree) && (each.streams & ~own) == 0; });
  runs_.list(run);
  return run;
}

// Moves free extents, whose work is done, to the hole: `wanted` bytes or somewhat more. An extent that cannot be moved
// stays, and so does one that the budget does not pay for, unless it must move.
void Growth::move_free_extents(Extents::Fill *fill, uint64_t wanted, uint64_t block, uint64_t own, bool must) {
  if (streams_.held_for_graph()) return;
  MessageGuard message_guard;
  // Runs at the edges become part of the new memory as they are, where they are free for this stream; of the one behind
  // it, as much as the block needs.
  const Span *first = fill->filled != nullptr ? fill->filled : fill->hole;
  const Span *before = first->before, *after = fill->hole->after;
  const bool joins = before != nullptr && before->is(SpanState::kFree) && (before->streams & ~own) == 0;
  const uintptr_t begin = joins ? before->begin() : first->begin();
  // An extent that touches the hole stays: as a hole of its own it would become one with the hole that is being filled.
  const uintptr_t stays_before = std::max(begin + block, fill->hole->end() + 1);
  const auto may_move = [&](const Span *run) { return run->bytes() >= kExtentAlignment && run != before; };
  uint64_t bits = 0;
  runs_.free().for_each([&](Span *run) {
    if (may_move(run)) bits |= run->streams;
  });
  streams_.ask(bits);
  struct Movable {
    Extent *extent;
    Span *run;
  };
  // The largest first, and those of a run from its end on: the rest of it is the same span then.
  Vector<Movable> all(core_.allocator);
  runs_.free().for_each([&](Span *run) {
    if (!may_move(run) || !streams_.is_done(run)) return;
    extents_.for_each_in(run, [&](Extent *extent) {
      if (!extent->mapped || !(extent->location == options_.device)) return;
      if (run == after && base_of(*extent) < stays_before) return;
      uint64_t at = all.size();
      while (at > 0 && size_of(*all[at - 1].extent) < size_of(*extent)) --at;
      if (!all.insert(at, Movable{extent, run})) return;  // without host memory it stays where it is
    });
  });
  uint64_t moved = 0;
  const auto may_go_on = [&] { return moved < wanted && fill->hole != nullptr && (must || policy_.moves.any()); };
  const auto move = [&](uint64_t index) {
    const Movable &movable = all[index];
    const uint64_t size = size_of(*movable.extent);
    if (extents_.move(movable.extent, movable.run, fill).ok()) {
      moved += size;
      policy_.moved(size);
    }
    all.erase(index);
  };
  for (uint64_t i = 0; i < all.size() && may_go_on();) {
    if (size_of(*all[i].extent) <= wanted - moved)
      move(i);
    else
      ++i;
  }
  // Then the smallest that is too large, where there are addresses for it.
  if (may_go_on() && !all.empty() && size_of(*all[all.size() - 1].extent) <= fill->hole->bytes()) move(all.size() - 1);
}

// Without the lock while it sleeps: a call in a stream may free memory, or wait for the thread that allocates here.
void Growth::wait_to_move(uint64_t bytes) {
  constexpr uint64_t kWorthIt = uint64_t{32} << 20;
  constexpr uint64_t kSleepUs = 100;
  constexpr int64_t kRound = 150'000;  // nanoseconds that a sleep takes
  if (options_.whole_regions() || bytes < kWorthIt) return;
  for (;;) {
    {
      LockGuard guard(mutex_);
      if (streams_.held_for_graph() || !policy_.waits.any() || core_.defer_depth.load(std::memory_order_relaxed) != 0)
        return;
      const uint64_t held = own_quota_.held(), peak = live_peak(bytes);
      uint64_t wanted = policy_.to_move(held, bytes, peak);
      if (wanted < kWorthIt) return;
      uint64_t bits = 0, done = 0, busy = 0;
      runs_.for_each_with_extents([&](Span *run) { bits |= run->streams; });
      streams_.ask(bits);
      runs_.for_each_with_extents([&](Span *run) { (streams_.is_done(run) ? done : busy) += run->bytes(); });
      if (done >= wanted || busy < kWorthIt || streams_.any_capturing()) return;
      policy_.is_behind(true);
      wanted = policy_.to_move(held, bytes, peak);
      if (done >= wanted) return;
      policy_.waits.spend(kRound);
    }
    sleep_us(kSleepUs);
  }
}

}  // namespace gmm
