// SPDX-License-Identifier: Apache-2.0
// Mappings and live ranges of the extents that are paused or resumed.
#include <algorithm>

#include "engine/pause/steps.h"

namespace gmm {

// Live memory of the extents, neighbours as one range, cut at the borders of extents; and the parts for the backup.
Status Pauser::plan_ranges(HeapShare &share) {
  share.ranges.clear();
  share.parts.clear();
  share.bytes = 0;
  Vector<ByteRange> live(core_.allocator);
  bool planned = share.parts.reserve(share.extents.size());
  for_each_region(*share.heap, [&](Region &region) {
    share.heap->for_each_span(region, [&](Span &span) {
      // A large block whose slot is 0 is on its way back to the heap: nobody wants its contents.
      const bool wanted = span.is(SpanState::kSlab) ||
                          (span.is(SpanState::kLarge) && span.slot(0).load(std::memory_order_relaxed) != 0);
      if (!wanted || !planned) return;
      if (!live.empty() && live.back().end() == span.begin())
        live.back().size += span.bytes();
      else
        planned = live.push_back(ByteRange{span.begin(), span.bytes()});
    });
  });
  std::sort(live.begin(), live.end(), [](const ByteRange &a, const ByteRange &b) { return a.base < b.base; });
  // A live range touches an extent more than there are borders inside it: reserved, as parts point into the ranges.
  planned = planned && share.ranges.reserve(live.size() + share.extents.size());
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
  uint64_t at = 0;
  for (const HeapShare::Planned &planned_extent : share.extents) {
    const Extent *extent = planned_extent.extent;
    const uintptr_t begin = base_of(*extent), end = end_of(*extent);
    const uint64_t first = share.ranges.size();
    while (at < live.size() && live[at].end() <= begin) ++at;
    for (uint64_t i = at; i < live.size() && live[i].base < end; ++i) {
      const uintptr_t from = std::max(live[i].base, begin), to = std::min(live[i].end(), end);
      share.ranges.push_back_reserved(ByteRange{from, to - from});
      share.bytes += to - from;
    }
    share.parts.push_back_reserved(BackupPart{share.ranges.data() + first, share.ranges.size() - first, extent->kept});
  }
  return Status();
}

// Neighbours by one call. On a failure those before it stay unmapped.
Status Pauser::unmap(HeapShare &share, uint64_t first, uint64_t count) {
  for (uint64_t i = first, end = first + count, next; i < end; i = next) {
    uint64_t bytes = size_of(*share.extents[i].extent);
    for (next = i + 1; next < end && base_of(*share.extents[next].extent) == base_of(*share.extents[i].extent) + bytes;
         ++next)
      bytes += size_of(*share.extents[next].extent);
    for (uint64_t k = i; k < next; ++k)
      share.extents[k].extent->state.store(ExtentState::kUnmapped, std::memory_order_release);
    if (Status status = core_.backend->unmap(address_of(*share.extents[i].extent), bytes); !status.ok()) {
      for (uint64_t k = i; k < next; ++k)
        share.extents[k].extent->state.store(ExtentState::kActive, std::memory_order_release);
      return status;
    }
    for (uint64_t k = i; k < next; ++k) share.extents[k].extent->mapped = false;
  }
  return Status();
}

// Maps what is not, and allows access to neighbours by one call. On a failure what this call mapped is unmapped again, as far as possible.
Status Pauser::map_group(HeapShare &share, uint64_t first, uint64_t count) {
  Backend &backend = *core_.backend;
  const Device device = share.heap->options().device;
  const auto owner_of = [&](const Extent &extent) {
    return extent.location.load(std::memory_order_relaxed).is_host() ? kHostLocation : device;
  };
  Status status;
  uint64_t end = first + count, next = first;
  for (uint64_t i = first; i < end && status.ok(); i = next) {
    Extent &start = *share.extents[i].extent;
    next = i + 1;
    if (start.mapped) continue;
    uint64_t bytes = 0;
    for (next = i; next < end; ++next) {
      Extent &extent = *share.extents[next].extent;
      if (extent.mapped || base_of(extent) != base_of(start) + bytes || !(owner_of(extent) == owner_of(start))) break;
      status = backend.map(address_of(extent), size_of(extent), extent.handle);
      if (!status.ok()) break;
      bytes += size_of(extent);
    }
    if (status.ok())
      status = backend.set_access(address_of(start), bytes, owner_of(start), share.heap->options().peers);
    if (status.ok()) {
      for (uint64_t k = i; k < next; ++k) share.extents[k].extent->mapped = true;
    } else if (bytes != 0) {
      core_.deferred_release.unmap(backend, address_of(start), bytes);
    }
  }
  return status;
}

}  // namespace gmm
