// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/reclaim.h"

namespace gmm {

Status Reclaim::wait_for_external() {
  LockGuard guard(mutex_);
  return streams_.wait_for_external();
}

Status Reclaim::wait_for_device() {
  GMM_TRY(wait_for_external());
  return core_.backend->synchronize(options_.device);
}

// Memory whose work is done goes back even if not everything could be waited for: others need it.
Status Reclaim::release(bool wait, uint64_t *released) {
  LockGuard guard(mutex_);
  Status first;
  if (wait) {
    uint64_t bits = 0;
    runs_.for_each_free([&](Span *run) { bits |= run->streams; });
    extents_.for_each_spare([&](const Extent *spare) { bits |= spare->streams; });
    first = streams_.wait_for_frees(bits);
  }
  if (wait || options_.capture != 0) {  // a capture heap that may release gives out nothing any more
    runs_.clear_done(streams_, policy_);
    runs_.merge_all(false);  // also neighbours that wait for nothing since earlier
  }
  keep_first(&first, [&] { return release_locked(UINT64_MAX, released); });
  extents_.end_empty_regions();
  return first;
}

// Those that work may still use stay. The first refusal ends it.
Status Reclaim::release_spares(uint64_t at_most, uint64_t *released, const ReleaseRule *rule) {
  Status status;
  extents_.for_each_spare([&](Extent *spare) {
    if (!status.ok() || *released >= at_most || (rule != nullptr && !rule->allows(*spare, 0))) return;
    streams_.ask(spare->streams);
    if (!streams_.is_done(spare)) return;
    const uint64_t bytes = size_of(*spare);
    status = extents_.release_spare(spare);
    if (status.ok()) *released += bytes;
  });
  return status;
}

Status Reclaim::release_locked(uint64_t at_most, uint64_t *released, const ReleaseRule *rule) {
  if (streams_.held_for_graph()) return Status();
  if (rule == nullptr) GMM_TRY(release_spares(at_most, released, nullptr));
  ReleaseRule limited = rule != nullptr ? *rule : ReleaseRule();
  if (reserve_ != 0) {
    const uint64_t above = *released + above_reserve();
    if (above < limited.at_most) limited.at_most = above;
  }
  Vector<Span *> runs(core_.allocator);
  uint64_t bits = 0;
  runs_.for_each_with_extents([&](Span *run) {
    // Without host memory for the list, a run that is left out is released another time.
    if (runs.push_back(run)) bits |= run->streams;
  });
  streams_.ask(bits);
  const bool bounds_all = rule != nullptr && rule->bounds_dedicated;
  for (Span *run : runs) {
    Region *region = run->region;
    const bool dedicated = region->dedicated, is_free_to_go = dedicated && !bounds_all;
    if ((*released >= at_most && !is_free_to_go) || !streams_.is_done(run)) continue;
    const ReleaseRule *applied = is_free_to_go ? nullptr : dedicated ? rule : &limited;
    const uint64_t before = *released;
    if (region->elastic) {
      if (applied == nullptr) GMM_TRY(extents_.release_elastic(region, released));
    } else if (options_.kind != Kind::kVmm) {
      GMM_TRY(release_allocation(run, released, applied));
    } else {
      GMM_TRY(extents_.release_in(run, is_free_to_go ? UINT64_MAX : at_most, released, applied));
      if (region->whole && region->extents.empty()) extents_.end_region(region);
    }
    // Dedicated blocks are no part of the reserve.
    if (dedicated && reserve_ != 0) limited.at_most += *released - before;
    if (bounds_all && limited.at_most > rule->at_most) limited.at_most = rule->at_most;
  }
  return Status();
}

uint64_t Reclaim::above_reserve() {
  const uint64_t held = extents_.pooled_bytes();
  return held > reserve_ ? held - reserve_ : 0;
}

// The regions of such a kind are driver allocations, which go whole.
Status Reclaim::release_allocation(Span *run, uint64_t *released, const ReleaseRule *rule) {
  Region *region = run->region;
  const uint64_t bytes = run->bytes();
  const Extent &extent = *region->extents.front();
  if (region->live_spans != 0 || bytes != region->size.load(std::memory_order_relaxed) ||
      extent.importers.load(std::memory_order_relaxed) != 0 || (rule != nullptr && !rule->allows(extent, *released)))
    return Status();
  runs_.unlist(run);
  if (Status status = extents_.deallocate(region); !status.ok()) {
    runs_.list(run);
    return status;
  }
  *released += bytes;
  return Status();
}

uint64_t Reclaim::releasable() {
  LockGuard guard(mutex_);
  return runs_.free().releasable();
}

// --- Idle memory -----------------------------------------------------------------------------------------------------

// Stamps the extents that lie whole in free memory, whatever streams it waits for; `since` when the last look did not
// see them free.
void Reclaim::stamp_free_extents(uint64_t since) {
  const auto stamp = [&](Extent *extent) {
    IdleMark &mark = extent->idle;
    // The object serves another extent later, which has another id.
    if (mark.extent_id != extent->id || mark.look + 1 < look_) mark.free_since = since;
    mark.extent_id = extent->id;
    mark.look = look_;
  };
  extents_.for_each_spare(stamp);
  runs_.free().for_each([&](Span *first) {
    // The first of neighbouring runs speaks for all.
    const Span *before = first->before;
    if (before != nullptr && before->is(SpanState::kFree)) return;
    const uintptr_t begin = first->begin();
    uintptr_t end = first->end();
    for (const Span *next = first->after; next != nullptr && next->is(SpanState::kFree); next = next->after)
      end = next->end();
    if (end - begin < kExtentAlignment) return;
    for (uintptr_t at = begin; at < end;) {
      Extent *extent = core_.page_map.find_extent(at);
      const uintptr_t base = base_of(*extent);
      at = base + size_of(*extent);
      if (base >= begin && at <= end) stamp(extent);
    }
  });
}

uint64_t Reclaim::look_for_idle(uint64_t now, uint64_t age) {
  {
    LockGuard guard(mutex_);
    ++look_;
    stamp_free_extents(now);
  }
  const uint64_t drained = caches_.drain_idle(now, age);
  uint64_t low = 0;
  {
    LockGuard guard(mutex_);
    // Memory that became free just now came from the idle caches, where nobody used it for the age.
    if (drained != 0) stamp_free_extents(now - age);
    low = runs_.free().take_low();
  }
  const uint64_t may_go = low_water_.note(low, now, age) + drained;
  low_water_.add(drained);
  return may_go;
}

Status Reclaim::return_spares(uint64_t at_most, uint64_t *released) {
  LockGuard guard(mutex_);
  return release_spares(at_most, released, nullptr);
}

Status Reclaim::release_idle_spares(uint64_t now, uint64_t age, uint64_t slice, uint64_t *released) {
  LockGuard guard(mutex_);
  if (!extents_.has_spares() || streams_.any_capturing()) return Status();
  const ReleaseRule rule{.look = look_, .now = now, .age = age};
  return release_spares(slice, released, &rule);
}

Status Reclaim::release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released) {
  LockGuard guard(mutex_);
  if ((at_most == 0 && runs_.dedicated().empty()) || streams_.any_capturing()) return Status();
  runs_.clear_done(streams_, policy_);
  const ReleaseRule rule{at_most, look_, now, age};
  const Status status = release_locked(at_most < slice ? at_most : slice, released, &rule);
  low_water_.subtract(*released);
  return status;
}

}  // namespace gmm
