// SPDX-License-Identifier: Apache-2.0
// Extents of a VMM heap: new ones, free ones that are mapped to other addresses, and those that go.
#include <algorithm>

#include "engine/heap/heap.h"
#include "engine/heap/idle_rule.h"

namespace gmm {
namespace {

void *address(uintptr_t value) { return reinterpret_cast<void *>(value); }

}  // namespace

// --- Cutting free runs at extents --------------------------------------------------------------------------------

Status Heap::cut_extent(const Extent &extent, Span *run, Cut *out) {
  *out = Cut{};
  out->extent = run;
  const uint64_t before = base_of(extent) - run->begin();
  bool good = before == 0 || runs_.split(run, before, &out->extent);
  if (good && before != 0) out->before = run;
  if (good && out->extent->bytes() > size_of(extent)) good = runs_.split(out->extent, size_of(extent), &out->after);
  if (good) return Status();
  rejoin(*out);
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to take an extent out of free memory.");
}

Span *Heap::rejoin(const Cut &cut) {
  Span *run = cut.extent;
  if (cut.after != nullptr) run = runs_.merge(run, cut.after);
  return cut.before != nullptr ? runs_.merge(cut.before, run) : run;
}

// --- Backing a hole ----------------------------------------------------------------------------------------------

// Maps the handle at the start of the hole; *place is still unbacked and in no list. A failure changes nothing.
Status Heap::map_at_hole(Fill *fill, PhysicalHandle handle, uint64_t size, Span **place) {
  Span *rest = nullptr;
  *place = fill->hole;
  if (fill->hole->bytes() > size && !runs_.split(fill->hole, size, &rest))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  fill->hole = rest;
  void *base = address((*place)->begin());
  Status status = core_.backend->map(base, size, handle);
  if (status.ok()) {
    status = core_.backend->set_access(base, size, options_.device, options_.peers);
    if (!status.ok()) core_.deferred_release.unmap(*core_.backend, base, size);
  }
  if (!status.ok()) fill->hole = rest != nullptr ? runs_.merge(*place, rest) : *place;
  return status;
}

void Heap::unmap_at_hole(Fill *fill, Span *place) {
  core_.deferred_release.unmap(*core_.backend, address(place->begin()), place->bytes());
  fill->hole = fill->hole != nullptr ? runs_.merge(place, fill->hole) : place;
}

// What is mapped at `place` is this extent from now on, and free.
void Heap::bind_extent(Fill *fill, Span *place, Extent *extent) {
  const uint64_t size = place->bytes();
  extent->base.store(place->begin(), std::memory_order_relaxed);
  extent->size.store(size, std::memory_order_relaxed);
  // Never that of an extent that was exported.
  extent->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
  extent->region.store(place->region, std::memory_order_release);
  place->region->extents.push_back(extent);
  core_.page_map.set_extent(place->begin(), size, extent);
  place->state.store(SpanState::kFree, std::memory_order_relaxed);
  place->streams = 0;
  fill->filled = fill->filled == nullptr ? place : runs_.merge(fill->filled, place);
  fill->bytes += size;
}

// One new extent at the start of the hole. Charged by the caller.
Status Heap::add_extent(Fill *fill, uint64_t size) {
  Backend &backend = *core_.backend;
  Extent *extent = core_.extents.take();
  if (extent == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  PhysicalHandle handle;
  Span *place = nullptr;
  Status status = backend.create(options_.device, size, &handle);
  if (status.ok()) {
    status = map_at_hole(fill, handle, size, &place);
    if (!status.ok()) core_.deferred_release.release(backend, handle);
  }
  if (!status.ok()) {
    core_.extents.put(extent);
    return status;
  }
  extent->handle = handle;
  extent->location = options_.device;
  extent->mapped = true;
  ++extent_count_;
  bind_extent(fill, place, extent);
  return status;
}

// New memory of `bytes` for a block, in extents that are not too large to be moved later. Charged by the caller; what
// was not made is refunded.
Status Heap::add_extents(Fill *fill, uint64_t bytes, uint64_t block) {
  const uint64_t largest = growth_.largest_extent(own_quota_.held(), block);
  const uint64_t count = (bytes + largest - 1) / largest;
  const uint64_t each = (bytes / count + kExtentAlignment - 1) & ~(kExtentAlignment - 1);
  while (bytes != 0) {
    const uint64_t size = bytes < each ? bytes : each;
    if (Status status = add_extent(fill, size); !status.ok()) {
      quotas_.refund(bytes);
      return status;
    }
    bytes -= size;
  }
  return Status();
}

// --- Moving ------------------------------------------------------------------------------------------------------

// Mapped at both places for a moment, so that a refusal leaves it where it was.
Status Heap::move_extent(Extent *extent, Fill *fill) {
  const uintptr_t base = base_of(*extent);
  const uint64_t size = size_of(*extent);
  Span *run = nullptr;
  runs_.free().for_each([&](Span *each) {
    if (each->begin() <= base && base < each->end()) run = each;
  });
  Cut cut;
  runs_.unlist(run);
  Status status = cut_extent(*extent, run, &cut);
  Span *place = nullptr;
  if (status.ok()) {
    status = map_at_hole(fill, extent->handle, size, &place);
    if (status.ok()) {
      status = core_.backend->unmap(address(base), size);
      if (!status.ok()) unmap_at_hole(fill, place);
    }
    if (!status.ok()) run = rejoin(cut);
  }
  if (!status.ok()) {
    runs_.list(run);
    return status;
  }
  if (cut.before != nullptr) runs_.list(cut.before);
  if (cut.after != nullptr) runs_.list(cut.after);
  core_.page_map.set_extent(base, size, nullptr);
  List<Extent, RegionExtents>::remove(extent);
  bind_extent(fill, place, extent);
  runs_.make_hole(cut.extent);
  growth_.moved(size);
  return Status();
}

void Heap::move_free_extents(Fill *fill, uint64_t wanted, uint64_t block) {
  if (held_for_graph_) return;
  MessageGuard keep;
  // Runs at the edges of the hole become part of the new memory as they are; of the one behind it, as much as the block
  // needs.
  const Span *before = fill->filled == nullptr ? fill->hole->before : nullptr;
  const Span *after = fill->hole->after;
  const uintptr_t begin = fill->filled != nullptr                             ? fill->filled->begin()
                          : before != nullptr && before->is(SpanState::kFree) ? before->begin()
                                                                              : fill->hole->begin();
  // What touches the hole stays in any case: as a hole of its own it would become one with that, which is being filled.
  const uintptr_t stays_before = std::max(begin + block, fill->hole->end() + 1);
  const auto may_move = [&](const Span *run) { return run->bytes() >= kExtentAlignment && run != before; };
  uint64_t bits = 0;
  runs_.free().for_each([&](Span *run) {
    if (may_move(run)) bits |= run->streams;
  });
  streams_.ask(bits);
  Vector<Extent *> extents(core_.allocator);  // the largest first
  runs_.free().for_each([&](Span *run) {
    if (!may_move(run) || !is_done(run)) return;
    for_each_extent_in(run, [&](Extent *extent) {
      if (!extent->mapped || !(extent->location == options_.device)) return;
      if (run == after && base_of(*extent) < stays_before) return;
      uint64_t at = extents.size();
      while (at > 0 && size_of(*extents[at - 1]) < size_of(*extent)) --at;
      if (!extents.insert(at, extent)) return;  // without host memory it stays where it is
    });
  });
  uint64_t moved = 0;
  const auto move = [&](uint64_t index) {
    const uint64_t size = size_of(*extents[index]);
    if (move_extent(extents[index], fill).ok()) moved += size;
    extents.erase(index);
  };
  for (uint64_t i = 0; i < extents.size() && moved < wanted && fill->hole != nullptr;) {
    if (size_of(*extents[i]) <= wanted - moved)
      move(i);
    else
      ++i;
  }
  // Then the smallest that is too large, where there are addresses for it.
  if (moved < wanted && !extents.empty() && fill->hole != nullptr &&
      size_of(*extents[extents.size() - 1]) <= fill->hole->bytes())
    move(extents.size() - 1);
}

// --- Going -------------------------------------------------------------------------------------------------------

// One extent out of a free run that is in no list; what is left of the run before it is listed, *rest is what follows,
// unlisted.
Status Heap::release_extent(Extent *extent, Span *run, Span **rest) {
  const uintptr_t base = base_of(*extent);
  const uint64_t size = size_of(*extent);
  Cut cut;
  *rest = run;
  GMM_TRY(cut_extent(*extent, run, &cut));
  if (extent->mapped) {
    if (Status status = core_.backend->unmap(address(base), size); !status.ok()) {
      *rest = rejoin(cut);
      return status;
    }
  }
  if (cut.before != nullptr) runs_.list(cut.before);
  *rest = cut.after;
  const bool charged = extent->handle.value != 0;
  if (charged) core_.deferred_release.release(*core_.backend, extent->handle);
  core_.page_map.set_extent(base, size, nullptr);
  List<Extent, RegionExtents>::remove(extent);
  if (charged)
    quotas_.refund(size);
  else if (options_.kind == Kind::kVmm)
    paused_ -= size;
  end_extent(extent);
  runs_.make_hole(cut.extent);
  return Status();
}

// Every extent that lies in the run whole, until `at_most` bytes are reached, and only what a rule allows.
Status Heap::release_run_extents(Span *run, uint64_t at_most, uint64_t *released, const IdleRule *rule) {
  Status status;
  uintptr_t at = run->begin();
  const uintptr_t end = run->end();
  runs_.unlist(run);
  while (run != nullptr && at < end && *released < at_most && status.ok()) {
    Extent *extent = core_.page_map.find_extent(address(at));
    const uintptr_t base = base_of(*extent);
    const uint64_t size = size_of(*extent);
    at = base + size;
    if (base < run->begin() || at > end || extent->importers.load(std::memory_order_relaxed) != 0) continue;
    if (rule != nullptr && !rule->allows(*extent, *released)) continue;
    status = release_extent(extent, run, &run);
    if (status.ok()) *released += size;
  }
  if (run != nullptr) runs_.list(run);
  return status;
}

}  // namespace gmm
