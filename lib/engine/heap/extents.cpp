// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/extents.h"

#include <cinttypes>

#include "engine/heap/heap.h"

namespace gmm {
namespace {

void *address(uintptr_t value) { return reinterpret_cast<void *>(value); }

// Whose memory the pages at a location are.
Device owner_of(Device device, Device location) { return location.is_host() ? location : device; }

// The pieces lie side by side in a window while they are filled.
Status copy_to_window(Core &core, const Region &region, Device device, Device location, gmm_stream stream,
                      Vector<Piece> *pieces) {
  Backend &backend = *core.backend;
  uint64_t bytes = 0, mapped = 0;
  for (const Piece &piece : *pieces) bytes += piece.range.size;
  void *base = nullptr;
  GMM_TRY(backend.reserve(bytes, &base));
  const uintptr_t window = reinterpret_cast<uintptr_t>(base);
  const auto fill = [&]() -> Status {
    for (Piece &piece : *pieces) {
      const uint64_t size = piece.range.size;
      GMM_TRY(create_pages(backend, region, location, size, &piece.handle));
      GMM_TRY(backend.map(address(window + mapped), size, piece.handle));
      mapped += size;
      GMM_TRY(backend.set_access(address(window + mapped - size), size, owner_of(device, location), 0));
    }
    GMM_TRY(backend.synchronize(device));
    uintptr_t at = window;
    for (const Piece &piece : *pieces) {
      GMM_TRY(backend.copy(device, stream, address(at), address(piece.range.base), piece.range.size));
      at += piece.range.size;
    }
    return backend.stream_synchronize(device, stream);
  };
  const Status status = fill();
  if (!status.ok()) {
    MessageGuard message_guard;
    backend.synchronize(device).ignore();  // the window must stay until copies have ended
  }
  uintptr_t at = window;
  for (const Piece &piece : *pieces) {
    if (at - window < mapped) core.deferred_release.unmap(backend, address(at), piece.range.size);
    at += piece.range.size;
  }
  core.deferred_release.unreserve(backend, base, bytes);
  return status;
}

// The pieces' pages in the place of the extent's.
Status remap(Core &core, const Extent &extent, const Region &region, Device device, Device location,
             const Vector<Piece> &pieces) {
  Backend &backend = *core.backend;
  const auto map_at = [&](ByteRange range, PhysicalHandle handle, Device owner) -> Status {
    GMM_TRY(backend.map(address(range.base), range.size, handle));
    const Status status = backend.set_access(address(range.base), range.size, owner, region.peers);
    MessageGuard message_guard;
    if (!status.ok()) backend.unmap(address(range.base), range.size).ignore();
    return status;
  };
  GMM_TRY(backend.unmap(address(base_of(extent)), size_of(extent)));
  Status status;
  uint64_t mapped = 0;
  for (; mapped < pieces.size(); ++mapped) {
    status = map_at(pieces[mapped].range, pieces[mapped].handle, owner_of(device, location));
    if (!status.ok()) break;
  }
  if (status.ok()) return status;
  // The old pages still hold the contents, so they are mapped again.
  MessageGuard message_guard;
  while (mapped-- > 0) backend.unmap(address(pieces[mapped].range.base), pieces[mapped].range.size).ignore();
  const Device owner = extent.location.load(std::memory_order_relaxed).is_host() ? kHostLocation : device;
  if (!map_at(ByteRange{base_of(extent), size_of(extent)}, extent.handle, owner).ok())
    core.log.write(LogLevel::kError, "A failed move or compaction could not map the old pages again: %s",
                   last_message());
  return status;
}

}  // namespace

Status move_to_new_pages(Core &core, const Extent &extent, Device device, Device location, gmm_stream stream,
                         Vector<Piece> *pieces) {
  const Region &region = *region_of(&extent);
  Status status = copy_to_window(core, region, device, location, stream, pieces);
  if (status.ok()) status = remap(core, extent, region, device, location, *pieces);
  if (status.ok()) return status;
  for (const Piece &piece : *pieces)
    if (piece.handle.value != 0) core.deferred_release.release(*core.backend, piece.handle);
  return status;
}

// --- Regions ---------------------------------------------------------------------------------------------------------

Status Extents::without_bookkeeping(void *base, uint64_t size, Region *region) {
  core_.deferred_release.unreserve(*core_.backend, base, size + heap_->checks().guard());
  if (region != nullptr) core_.regions.put(region);
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes of addresses.",
              size);
}

Status Extents::reserve(uint64_t bytes, uint64_t at_most, Region **out) {
  const uint64_t guard = heap_->checks().guard();
  uint64_t size = at_most < bytes ? bytes : at_most;
  void *base = nullptr;
  Status status = core_.backend->reserve(size + guard, &base);
  while (!status.ok() && size > bytes) {
    size = size / 2 < bytes ? bytes : size / 2;
    status = core_.backend->reserve(size + guard, &base);
  }
  GMM_TRY(status);
  Region *region = core_.regions.take();
  Span *span = nullptr;
  if (region != nullptr && core_.page_map.prepare(reinterpret_cast<uintptr_t>(base), size))
    span = runs_.new_span(SpanState::kUnbacked, reinterpret_cast<uintptr_t>(base), size, region);
  if (span == nullptr) return without_bookkeeping(base, size, region);
  begin_region(region, span, false);
  *out = region;
  return Status();
}

Status Extents::allocate(uint64_t bytes, bool dedicated, Span **out, const CommTraits *comm) {
  if (options_.kind == Kind::kVmm) return allocate_mapped(bytes, dedicated, out, comm);
  Allocation allocation;
  const bool exportable = dedicated || options_.exportable;
  GMM_TRY(core_.backend->allocate(options_.kind, options_.device, bytes, exportable, &allocation));
  const uintptr_t base = reinterpret_cast<uintptr_t>(allocation.base);
  Region *region = core_.regions.take();
  Extent *extent = core_.extents.take();
  Span *span = nullptr;
  if (region != nullptr && extent != nullptr && core_.page_map.prepare(base, bytes))
    span = runs_.new_span(SpanState::kFree, base, bytes, region);
  if (span == nullptr) {
    core_.deferred_release.deallocate(*core_.backend, allocation);
    if (region != nullptr) core_.regions.put(region);
    if (extent != nullptr) core_.extents.put(extent);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes.", bytes);
  }
  region->allocation = allocation;
  begin_region(region, span, dedicated);
  begin_extent(extent, PhysicalHandle{});
  place(extent, *span);
  quotas_.note_peak();
  *out = span;
  return Status();
}

Status Extents::reserve_elastic(uint64_t bytes, Span **out) {
  PageMap &map = core_.page_map;
  const uint64_t guard = heap_->checks().guard();
  void *base = nullptr;
  GMM_TRY(core_.backend->reserve(bytes + guard, &base));
  const uintptr_t at = reinterpret_cast<uintptr_t>(base);
  Region *region = core_.regions.take();
  Span *span = nullptr;
  if (region != nullptr && map.prepare(at, kExtentAlignment) && map.prepare(at + bytes - 1, 1))
    span = runs_.new_span(SpanState::kFree, at, bytes, region);
  if (span != nullptr && !map.add_sparse(span)) {
    runs_.end_span(span);
    span = nullptr;
  }
  if (span == nullptr) return without_bookkeeping(base, bytes, region);
  begin_region(region, span, true);
  // As ordinary memory: each of its pages would need a descriptor of its own.
  region->exportable = options_.exportable;
  region->elastic = true;
  region->whole = true;
  *out = span;
  return Status();
}

// VMM: addresses for one extent, and the extent.
Status Extents::allocate_mapped(uint64_t bytes, bool dedicated, Span **out, const CommTraits *comm) {
  Region *region = nullptr;
  GMM_TRY(reserve(bytes, bytes, &region));
  if (comm != nullptr) {
    region->comm = true;
    region->peers |= comm->peers;
  }
  region->exportable |= dedicated;
  Fill fill;
  fill.hole = region->first;
  if (Status status = add_one(&fill, bytes); !status.ok()) {
    end_region(region);
    return status;
  }
  region->dedicated = dedicated;
  region->whole = true;
  quotas_.note_peak();
  *out = fill.filled;
  return Status();
}

// The span covers the whole region.
void Extents::begin_region(Region *region, Span *span, bool dedicated) {
  region->heap.store(heap_, std::memory_order_relaxed);
  region->base.store(span->begin(), std::memory_order_relaxed);
  region->size.store(span->bytes(), std::memory_order_relaxed);
  region->dedicated = dedicated;
  region->exportable = dedicated || options_.exportable;
  region->whole = options_.kind != Kind::kVmm;
  region->comm = false;
  region->elastic = false;
  region->active = 0;
  region->peers = options_.peers;
  region->live_spans = 0;
  runs_.add_region(region, span);
}

Status Extents::deallocate(Region *region) {
  const uintptr_t base = region->base.load(std::memory_order_relaxed);
  const uint64_t size = region->size.load(std::memory_order_relaxed);
  Extent *extent = region->extents.front();
  if (extent == nullptr) __builtin_unreachable();
  Span *span = region->first;
  // The page map lets go of the addresses before the driver does: from then on they may be another heap's.
  displace(ByteRange{base, size});
  core_.page_map.set(base, size, nullptr);
  if (Status status = core_.backend->deallocate(region->allocation); !status.ok()) {
    core_.page_map.set(base, size, span);
    core_.page_map.set_extent(base, size, extent);
    return status;
  }
  List<Extent, RegionExtents>::remove(extent);
  end_extent(extent);
  quotas_.refund(size);
  return_region(region, span);
  return Status();
}

void Extents::end_region(Region *region) {
  Span *span = region->first;
  runs_.unlist(span);
  // As in deallocate(): the page map first.
  if (region->elastic) core_.page_map.remove_sparse(span);
  core_.page_map.set(span->begin(), region->elastic ? kExtentAlignment : span->bytes(), nullptr);
  return_region(region, span);
}

void Extents::return_region(Region *region, Span *span) {
  runs_.end_span(span);
  if (options_.kind == Kind::kVmm)
    core_.deferred_release.unreserve(*core_.backend, address(region->base.load(std::memory_order_relaxed)),
                                     region->size.load(std::memory_order_relaxed) + heap_->checks().guard());
  List<Region, HeapRegions>::remove(region);
  region->size.store(0, std::memory_order_relaxed);
  region->heap.store(nullptr, std::memory_order_relaxed);
  core_.regions.put(region);
}

void Extents::end_empty_regions() {
  if (options_.kind != Kind::kVmm) return;
  for (Region *region = runs_.regions().front(), *next; region != nullptr; region = next) {
    next = runs_.regions().next(region);
    const uint64_t size = region->size.load(std::memory_order_relaxed);
    if (region->extents.empty() && region->paused.load(std::memory_order_relaxed) == 0 && region->live_spans == 0 &&
        region->first->bytes() == size)
      end_region(region);
  }
}

void Extents::end_with_blocks(Region *region) {
  while (Extent *extent = region->extents.pop_front()) {
    const uintptr_t base = base_of(*extent);
    const uint64_t size = size_of(*extent);
    if (options_.kind == Kind::kVmm) {
      if (extent->mapped) core_.deferred_release.unmap(*core_.backend, address(base), size);
      if (extent->handle.value != 0) core_.deferred_release.release(*core_.backend, extent->handle);
    }
    if (extent->mapped || extent->handle.value != 0) quotas_.refund(size);
    displace(ByteRange{base, size});
    if (region->elastic) core_.page_map.set(base, size, nullptr);
    end_extent(extent);
  }
  runs_.end_all_but_first(region);
  const Allocation allocation = region->allocation;
  end_region(region);
  if (options_.kind != Kind::kVmm) core_.deferred_release.deallocate(*core_.backend, allocation);
}

// --- Extents of VMM regions ------------------------------------------------------------------------------------------

// Cuts the run, which is in no list, where the extent begins and ends.
Status Extents::cut_at(const Extent &extent, Span *run, Cut *out) {
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

Span *Extents::rejoin(const Cut &cut) {
  Span *run = cut.extent;
  if (cut.after != nullptr) run = runs_.merge(run, cut.after);
  return cut.before != nullptr ? runs_.merge(cut.before, run) : run;
}

Status Extents::begin_fill(Span *hole, uint64_t offset, Fill *fill) {
  runs_.unlist(hole);
  fill->hole = hole;
  if (offset == 0) return Status();
  const bool good = runs_.split(hole, offset, &fill->hole);
  runs_.list_hole(hole);
  if (good) return Status();
  fill->hole = nullptr;
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
}

// Maps the handle at the start of the hole; *place is still unbacked and in no list.
Status Extents::map(Fill *fill, PhysicalHandle handle, uint64_t size, Span **place) {
  Span *rest = nullptr;
  *place = fill->hole;
  if (fill->hole->bytes() > size && !runs_.split(fill->hole, size, &rest))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  fill->hole = rest;
  void *base = address((*place)->begin());
  Status status = core_.deferred_release.end_mappings(*core_.backend, base, size);
  if (status.ok()) status = core_.backend->map(base, size, handle);
  if (status.ok()) {
    status = core_.backend->set_access(base, size, options_.device, (*place)->region->peers);
    if (!status.ok()) core_.deferred_release.unmap(*core_.backend, base, size);
  }
  if (!status.ok()) fill->hole = rest != nullptr ? runs_.merge(*place, rest) : *place;
  return status;
}

void Extents::unmap(Fill *fill, Span *place) {
  core_.deferred_release.unmap(*core_.backend, address(place->begin()), place->bytes());
  fill->hole = fill->hole != nullptr ? runs_.merge(place, fill->hole) : place;
}

void Extents::begin_extent(Extent *extent, PhysicalHandle handle) {
  extent->handle = handle;
  extent->is_out.store(false, std::memory_order_relaxed);
  extent->location = options_.device;
  extent->mapped = true;
  ++count_;
}

// The extent backs the addresses of the span from now on.
void Extents::place(Extent *extent, ByteRange range, Region *region) {
  extent->base.store(range.base, std::memory_order_relaxed);
  extent->size.store(range.size, std::memory_order_relaxed);
  // An extent that was exported has another id.
  extent->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
  extent->region.store(region, std::memory_order_release);
  region->extents.push_back(extent);
  core_.page_map.set_extent(range.base, range.size, extent);
  if (!region->elastic) heap_->checks().added(range);
}

// No extent backs the addresses from now on.
void Extents::displace(ByteRange range) {
  core_.page_map.set_extent(range.base, range.size, nullptr);
  heap_->checks().removed(range);
}

// The extent is mapped at the span, and free.
void Extents::join(Fill *fill, Span *span, Extent *extent) {
  place(extent, *span);
  span->state.store(SpanState::kFree, std::memory_order_relaxed);
  span->streams = 0;
  fill->bytes += span->bytes();
  fill->filled = fill->filled == nullptr ? span : runs_.merge(fill->filled, span);
}

Status Extents::add(Fill *fill, uint64_t bytes, uint64_t each) {
  uint64_t left = bytes;
  Status status = bytes < kWorthAsking ? Status() : core_.backend->can_create(options_.device, bytes);
  while (left != 0 && status.ok()) {
    const uint64_t size = left < each ? left : each;
    status = add_one(fill, size);
    if (status.ok()) left -= size;
  }
  quotas_.refund(left);
  quotas_.note_peak();
  return status;
}

Status Extents::add_one(Fill *fill, uint64_t size) {
  Backend &backend = *core_.backend;
  Extent *extent = core_.extents.take();
  PhysicalHandle handle;
  Span *span = nullptr;
  Status status = extent != nullptr
                      ? create_pages(backend, *fill->hole->region, options_.device, size, &handle)
                      : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  if (status.ok()) {
    status = map(fill, handle, size, &span);
    if (!status.ok()) core_.deferred_release.release(backend, handle);
  }
  if (!status.ok()) {
    if (extent != nullptr) core_.extents.put(extent);
    return status;
  }
  begin_extent(extent, handle);
  join(fill, span, extent);
  return Status();
}

// Mapped at both places for a moment, so that a refusal leaves it where it was.
Status Extents::move(Extent *extent, Span *run, Fill *fill) {
  const uintptr_t base = base_of(*extent);
  const uint64_t size = size_of(*extent);
  const auto holds = [&](const Span *each) { return each->begin() <= base && base < each->end(); };
  if (!run->is(SpanState::kFree) || !run->listed || !holds(run))
    runs_.free().for_each([&](Span *each) { run = holds(each) ? each : run; });
  Cut cut;
  runs_.unlist(run);
  Status status = cut_at(*extent, run, &cut);
  Span *span = nullptr;
  if (status.ok()) {
    status = map(fill, extent->handle, size, &span);
    if (status.ok()) {
      status = core_.backend->unmap(address(base), size);
      if (!status.ok()) unmap(fill, span);
    }
    if (!status.ok()) run = rejoin(cut);
  }
  if (!status.ok()) {
    runs_.list(run);
    return status;
  }
  if (cut.before != nullptr) runs_.list(cut.before);
  if (cut.after != nullptr) runs_.list(cut.after);
  displace(ByteRange{base, size});
  List<Extent, RegionExtents>::remove(extent);
  join(fill, span, extent);
  runs_.make_hole(cut.extent);
  return Status();
}

Status Extents::release(Extent *extent, Span *run, Span **rest) {
  const uintptr_t base = base_of(*extent);
  const uint64_t size = size_of(*extent);
  Cut cut;
  *rest = run;
  GMM_TRY(cut_at(*extent, run, &cut));
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
  displace(ByteRange{base, size});
  List<Extent, RegionExtents>::remove(extent);
  if (charged)
    quotas_.refund(size);
  else
    paused_bytes_ -= size;
  end_extent(extent);
  runs_.make_hole(cut.extent);
  return Status();
}

Status Extents::release_in(Span *run, uint64_t at_most, uint64_t *released, const ReleaseRule *rule) {
  return release_if(run, released, [&](const Extent &extent) {
    return *released < at_most && (rule == nullptr || rule->allows(extent, *released));
  });
}

Status Extents::evacuate(Extent *extent, Vector<Piece> *pieces) {
  const ByteRange whole{base_of(*extent), size_of(*extent)};
  Region *region = extent->region.load(std::memory_order_relaxed);
  Status status;
  (*pieces)[0].extent = extent;
  for (uint64_t i = 1; i < pieces->size() && status.ok(); ++i)
    if (((*pieces)[i].extent = core_.extents.take()) == nullptr)
      status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  // The default stream would wait for others.
  if (status.ok())
    status = move_to_new_pages(core_, *extent, options_.device, options_.device, GMM_STREAM_PER_THREAD, pieces);
  if (!status.ok()) {
    for (const Piece &piece : *pieces)
      if (piece.extent != nullptr && piece.extent != extent) core_.extents.put(piece.extent);
    return status;
  }
  const PhysicalHandle old = extent->handle;
  uint64_t kept = 0;
  // The old one last: until then readers without the lock find it at all of its addresses.
  for (uint64_t i = pieces->size(); i-- > 0;) {
    const Piece &piece = (*pieces)[i];
    kept += piece.range.size;
    if (i == 0) {
      List<Extent, RegionExtents>::remove(extent);
      extent->handle = piece.handle;
      extent->is_out.store(false, std::memory_order_relaxed);
    } else {
      begin_extent(piece.extent, piece.handle);
    }
    place(piece.extent, piece.range, region);
  }
  uintptr_t at = whole.base;
  for (const Piece &piece : *pieces) {
    if (piece.range.base != at) displace(ByteRange{at, piece.range.base - at});
    at = piece.range.end();
  }
  if (at != whole.end()) displace(ByteRange{at, whole.end() - at});
  core_.deferred_release.release(*core_.backend, old);
  quotas_.refund(whole.size - kept);
  return status;
}

bool Extents::merge(Extent *into, Extent *from) {
  if (!backups_.merge(*into, *from)) return false;
  const uint64_t size = size_of(*into) + size_of(*from);
  List<Extent, RegionExtents>::remove(from);
  into->size.store(size, std::memory_order_relaxed);
  into->id = core_.next_extent_id.fetch_add(1, std::memory_order_relaxed);
  core_.page_map.set_extent(base_of(*into), size, into);
  end_extent(from);
  return true;
}

// --- Extents of elastic regions --------------------------------------------------------------------------------------

Status Extents::add_paused(Region &region, ByteRange range, Extent **out) {
  Extent *extent = core_.page_map.prepare(range.base, range.size) ? core_.extents.take() : nullptr;
  if (extent == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an extent.");
  begin_extent(extent, PhysicalHandle{});
  extent->mapped = false;
  extent->state.store(ExtentState::kPaused, std::memory_order_relaxed);
  place(extent, range, &region);
  core_.page_map.set(range.base, range.size, region.first);
  paused_bytes_ += range.size;
  *out = extent;
  return Status();
}

// The first page stays the block's.
void Extents::leave_gap(const Extent &extent) {
  const uintptr_t base = base_of(extent);
  const uint64_t first = base == region_of(&extent)->base.load(std::memory_order_relaxed) ? kExtentAlignment : 0;
  core_.page_map.set_extent(base, size_of(extent), nullptr);
  core_.page_map.set(base + first, size_of(extent) - first, nullptr);
}

void Extents::make_spare(Extent *extent) {
  extent->state.store(ExtentState::kPaused, std::memory_order_release);
  extent->is_spare = true;
  extent->idle = IdleMark{};
  spares_.push_back(extent);
  core_.spare_bytes.fetch_add(size_of(*extent), std::memory_order_relaxed);
}

void Extents::take_spare(Extent *extent) {
  extent->is_spare = false;
  core_.spare_bytes.fetch_sub(size_of(*extent), std::memory_order_relaxed);
  List<Extent, SpareExtents>::remove(extent);
}

bool Extents::move_handle(Extent *spare, Extent &into) {
  MessageGuard message_guard;
  if (!core_.backend->unmap(address(base_of(*spare)), size_of(*spare)).ok()) return false;
  spare->mapped = false;
  into.handle = spare->handle;
  spare->handle = PhysicalHandle{};
  paused_bytes_ += size_of(*spare);
  end_paused(spare);
  return true;
}

Status Extents::release_spare(Extent *extent) {
  if (extent->mapped) GMM_TRY(core_.backend->unmap(address(base_of(*extent)), size_of(*extent)));
  extent->mapped = false;
  end_paused(extent);
  return Status();
}

void Extents::end_paused(Extent *extent) {
  const uint64_t size = size_of(*extent);
  leave_gap(*extent);
  if (extent->mapped) core_.deferred_release.unmap(*core_.backend, address(base_of(*extent)), size);
  if (extent->handle.value != 0) {
    core_.deferred_release.release(*core_.backend, extent->handle);
    quotas_.refund(size);
  } else {
    paused_bytes_ -= size;
  }
  List<Extent, RegionExtents>::remove(extent);
  end_extent(extent);
}

Status Extents::release_elastic(Region *region, uint64_t *released) {
  while (Extent *extent = region->extents.front()) {
    const uint64_t bytes = extent->handle.value != 0 ? size_of(*extent) : 0;
    GMM_TRY(release_spare(extent));
    *released += bytes;
  }
  end_region(region);
  return Status();
}

void Extents::count_active(Region &region) {
  uint64_t bytes = 0;
  for_each_extent(region, [&](const Extent &extent) { bytes += is_paused(extent) ? 0 : size_of(extent); });
  region.active.store(bytes, std::memory_order_relaxed);
}

template <typename Fn>
void Extents::for_each_pooled(Fn fn) {
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region)) {
    if (region->dedicated) continue;
    for_each_extent(*region, [&](const Extent &extent) {
      if (extent.mapped && !is_paused(extent)) fn(extent);
    });
  }
}

uint64_t Extents::pooled_bytes() {
  uint64_t bytes = 0;
  for_each_pooled([&](const Extent &extent) { bytes += size_of(extent); });
  return bytes;
}

Status Extents::touch(uintptr_t base, uint64_t size) {
  if (!core_.page_map.prepare_all_granules(base, size))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of blocks in %" PRIu64 " bytes.",
                size);
  return core_.backend->populate(address(base), size);
}

Status Extents::touch_all() {
  Status status;
  for_each_pooled([&](const Extent &extent) {
    if (status.ok()) status = touch(base_of(extent), size_of(extent));
  });
  return status;
}

// The extent is in no list, and nothing is mapped. Its object starts anew.
void Extents::end_extent(Extent *extent) {
  backups_.forget(*extent);
  if (extent->is_spare) take_spare(extent);
  extent->region.store(nullptr, std::memory_order_relaxed);
  extent->handle = PhysicalHandle{};
  extent->state.store(ExtentState::kActive, std::memory_order_release);  // ReadySignal::wait() sees that it ended
  extent->mapped = true;
  core_.extents.put(extent);
  --count_;
}

void Extents::forget_contents(ByteRange freed, const Span &run) {
  // A chunk that reaches into the freed memory begins and ends no further away.
  const uintptr_t begin = freed.base - run.begin() < kMaxChunk ? run.begin() : freed.base - kMaxChunk;
  const uintptr_t end = run.end() - freed.end() < kMaxChunk ? run.end() : freed.end() + kMaxChunk;
  core_.page_map.for_each_extent(begin, end, [&](Extent &extent) {
    backups_.forget(extent, ByteRange{begin, end - begin});
    return true;
  });
}

}  // namespace gmm
