// SPDX-License-Identifier: Apache-2.0
// Memory back to the driver.
#include <time.h>

#include <cinttypes>

#include "engine/heap/heap.h"
#include "engine/heap/idle_rule.h"

namespace gmm {

// Forgets a region of which one span is left. The page map lets go of the addresses before the driver does: from
// then on they may be another heap's.
void Heap::end_region(Region *region) {
  Span *span = region->first;
  runs_.unlist(span);
  core_.page_map.set(region->base.load(std::memory_order_relaxed), region->size.load(std::memory_order_relaxed),
                     nullptr);
  forget_region(region, span);
}

void Heap::forget_region(Region *region, Span *span) {
  runs_.end_span(span);
  if (options_.kind == Kind::kVmm)
    core_.deferred_release.unreserve(*core_.backend,
                                     reinterpret_cast<void *>(region->base.load(std::memory_order_relaxed)),
                                     region->size.load(std::memory_order_relaxed));
  List<Region, HeapRegions>::remove(region);
  region->size.store(0, std::memory_order_relaxed);
  region->heap.store(nullptr, std::memory_order_relaxed);
  core_.regions.put(region);
}

Status Heap::release_plain_region(Region *region) {
  const uintptr_t base = region->base.load(std::memory_order_relaxed);
  const uint64_t size = region->size.load(std::memory_order_relaxed);
  Extent *extent = region->extents.front();
  if (extent == nullptr) __builtin_unreachable();
  Span *span = region->first;
  core_.page_map.set_extent(base, size, nullptr);
  core_.page_map.set(base, size, nullptr);
  if (Status status = core_.backend->deallocate(region->allocation); !status.ok()) {
    core_.page_map.set(base, size, span);
    core_.page_map.set_extent(base, size, extent);
    return status;
  }
  List<Extent, RegionExtents>::remove(extent);
  end_extent(extent);
  quotas_.refund(size);
  forget_region(region, span);
  return Status();
}

// Free runs that may hold whole extents. fn may not change the lists.
template <typename Fn>
void Heap::for_each_releasable(Fn fn) {
  runs_.free().for_each([&](Span *run) {
    if (run->bytes() >= kExtentAlignment) fn(run);
  });
  for (Span *run = runs_.dedicated().front(); run != nullptr; run = runs_.dedicated().next(run)) fn(run);
}

// Waits, without the lock, for what is queued so far on the streams that free memory belongs to.
Status Heap::wait_for_free() {
  Vector<NativeEvent> events(core_.allocator);
  Status status;
  {
    LockGuard guard(mutex);
    uint64_t bits = 0;
    runs_.free().for_each([&](Span *run) { bits |= run->streams; });
    for_each_releasable([&](Span *run) { bits |= run->streams; });
    status = streams_.collect_events(bits, &events);
  }
  for (uint64_t i = 0; i < events.size() && status.ok(); ++i) status = core_.backend->event_synchronize(events[i]);
  return status;
}

// Bounded, and without the lock while it sleeps: a call in a stream may free memory, or wait for the thread that
// allocates here.
void Heap::wait_to_move(uint64_t bytes) {
  constexpr uint64_t kWorthIt = uint64_t{32} << 20;
  constexpr timespec kSleep = {0, 100'000};
  constexpr int64_t kRound = 150'000;  // nanoseconds that a sleep takes
  if (options_.kind != Kind::kVmm || bytes < kWorthIt) return;
  for (;;) {
    {
      LockGuard guard(mutex);
      if (held_for_graph_ || !growth_.may_wait() || core_.defer_depth.load(std::memory_order_relaxed) != 0) return;
      const uint64_t held = own_quota_.held(), peak = live_peak(bytes);
      uint64_t wanted = growth_.to_move(held, bytes, peak);
      if (wanted < kWorthIt) return;
      uint64_t bits = 0, done = 0, busy = 0;
      for_each_releasable([&](Span *run) { bits |= run->streams; });
      streams_.ask(bits);
      for_each_releasable([&](Span *run) { (is_done(run) ? done : busy) += run->bytes(); });
      if (done >= wanted || busy < kWorthIt || streams_.any_capturing()) return;
      growth_.is_behind(true);
      wanted = growth_.to_move(held, bytes, peak);
      if (done >= wanted) return;
      growth_.waited(kRound);
    }
    nanosleep(&kSleep, nullptr);
  }
}

// Free memory whose streams are done is free for all, and neighbours become one run. False when there was none.
bool Heap::clear_done_streams() {
  uint64_t bits = 0;
  runs_.free().for_each([&](Span *run) { bits |= run->streams; });
  if (bits == 0) return false;
  growth_.asked(static_cast<uint32_t>(std::popcount(bits)));
  streams_.ask(bits);
  bool any = false;
  runs_.free().for_each([&](Span *run) {
    const uint64_t done = streams_.done(run->streams, run->stamp);
    run->streams &= ~done;
    any = any || done != 0;
  });
  if (any) runs_.merge_all(false);
  return any;
}

Status Heap::release_free_locked(uint64_t at_most, uint64_t *released, const IdleRule *rule) {
  if (held_for_graph_) return Status();
  Vector<Span *> runs(core_.allocator);
  uint64_t bits = 0;
  for_each_releasable([&](Span *run) {
    // Without host memory for the list, what is left out is released another time.
    if (runs.push_back(run)) bits |= run->streams;
  });
  streams_.ask(bits);
  for (Span *run : runs) {
    Region *region = run->region;
    const bool dedicated = region->dedicated;
    if ((*released >= at_most && !dedicated) || !is_done(run)) continue;
    if (options_.kind != Kind::kVmm) {
      if (region->live_spans != 0 || run->bytes() != region->size.load(std::memory_order_relaxed) ||
          region->extents.front()->importers.load(std::memory_order_relaxed) != 0)
        continue;
      const uint64_t bytes = run->bytes();
      if (rule != nullptr && !dedicated && !rule->allows(*region->extents.front(), *released)) continue;
      runs_.unlist(run);
      if (Status status = release_plain_region(region); !status.ok()) {
        runs_.list(run);
        return status;
      }
      *released += bytes;
      continue;
    }
    GMM_TRY(release_run_extents(run, dedicated ? UINT64_MAX : at_most, released, dedicated ? nullptr : rule));
    if (dedicated && region->extents.empty()) end_region(region);
  }
  return Status();
}

// VMM: addresses that hold nothing go back too, else pauses, during which allocations go to new regions, would use them
// up.
void Heap::end_empty_regions() {
  if (options_.kind != Kind::kVmm) return;
  for (Region *region = runs_.regions().front(), *next; region != nullptr; region = next) {
    next = runs_.regions().next(region);
    const uint64_t size = region->size.load(std::memory_order_relaxed);
    if (region->extents.empty() && region->paused.load(std::memory_order_relaxed) == 0 &&
        region->first->bytes() == size)
      end_region(region);
  }
}

Status Heap::release_free(uint64_t at_most, bool wait, uint64_t *released) {
  if (wait) GMM_TRY(wait_for_free());
  LockGuard guard(mutex);
  if (wait || options_.capture != 0) {  // a capture heap that may release gives out nothing any more
    clear_done_streams();
    runs_.merge_all(false);  // also neighbours that wait for nothing since earlier
  }
  GMM_TRY(release_free_locked(at_most, released));
  end_empty_regions();
  return Status();
}

Status Heap::close(bool force) {
  const Status drained = drain_caches(true);
  if (!force) GMM_TRY(drained);
  free_held_for_importers();
  // Without a lock, as a callback in a stream may free memory; and without host memory, of which there may be none.
  if (!force) GMM_TRY(core_.backend->synchronize(options_.device));
  LockGuard guard(mutex);
  if (!force) {
    uint64_t spans = 0;
    for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region))
      spans += region->live_spans;
    if (spans != 0)
      return fail(GMM_ERROR_BUSY,
                  "The heap still has live blocks in %" PRIu64 " spans; free them before gmm_heap_destroy().", spans);
    runs_.free().for_each([](Span *run) { run->streams = 0; });
    for (Span *run = runs_.dedicated().front(); run != nullptr; run = runs_.dedicated().next(run)) run->streams = 0;
    runs_.merge_all(false);
    uint64_t released = 0;
    GMM_TRY(release_free_locked(UINT64_MAX, &released));
  }
  while (Region *region = runs_.regions().front()) {
    const uint64_t size = region->size.load(std::memory_order_relaxed);
    while (Extent *extent = region->extents.pop_front()) {
      void *address = reinterpret_cast<void *>(extent->base.load(std::memory_order_relaxed));
      const uint64_t bytes = extent->size.load(std::memory_order_relaxed);
      if (options_.kind == Kind::kVmm) {
        if (extent->mapped) core_.deferred_release.unmap(*core_.backend, address, bytes);
        if (extent->handle.value != 0) core_.deferred_release.release(*core_.backend, extent->handle);
      }
      if (extent->mapped || extent->handle.value != 0) quotas_.refund(bytes);
      core_.page_map.set_extent(reinterpret_cast<uintptr_t>(address), bytes, nullptr);
      end_extent(extent);
    }
    // All spans go, whatever they are; the one that is left at the base ends with the region.
    Span *first_span = region->first;
    for (Span *span = first_span->after, *next; span != nullptr; span = next) {
      next = span->after;
      drop_span(span);
    }
    first_span->after = nullptr;
    runs_.unlist(first_span);
    if (region->paused.load(std::memory_order_relaxed) != 0) {
      region->paused.store(0, std::memory_order_relaxed);
      fast.has_paused.fetch_sub(1, std::memory_order_relaxed);
    }
    first_span->size.store(size, std::memory_order_relaxed);
    region->live_spans = 0;
    const Allocation allocation = region->allocation;
    end_region(region);
    if (options_.kind != Kind::kVmm) core_.deferred_release.deallocate(*core_.backend, allocation);
  }
  slabs_.clear();
  return Status();
}

void Heap::drop_span(Span *span) {
  runs_.unlist(span);
  runs_.end_span(span);
}

}  // namespace gmm
