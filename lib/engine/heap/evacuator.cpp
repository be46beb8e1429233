// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/evacuator.h"

#include <algorithm>

namespace gmm {

ByteRange Evacuator::free_part(const Span &span, const Extent &extent) {
  const uintptr_t begin = Extents::rounded(std::max(span.begin(), base_of(extent)));
  const uintptr_t end = std::min(span.end(), end_of(extent)) & ~(kExtentAlignment - 1);
  return begin < end ? ByteRange{begin, end - begin} : ByteRange{begin, 0};
}

bool Evacuator::may_evacuate(const Extent &extent) const {
  return extent.mapped && extent.location == options_.device && extent.kept == nullptr && !is_paused(extent) &&
         extent.importers.load(std::memory_order_relaxed) == 0;
}

// An export names the extents of its block.
bool Evacuator::has_exports(const Choice &choice) {
  const uintptr_t end = end_of(*choice.extent);
  for (Span *span = choice.first; span != nullptr && span->begin() < end; span = span->after) {
    if (!span->live()) continue;
    const uint32_t blocks = span->is(SpanState::kSlab) ? span->block_count.load(std::memory_order_relaxed) : 1;
    for (uint32_t i = 0; i < blocks; ++i) {
      if ((span->slot(i).load(std::memory_order_relaxed) & kUsedElsewhere) == 0) continue;
      const uintptr_t block = span->is(SpanState::kSlab) ? span->block(i) : span->begin();
      if (uses_.is_exported(reinterpret_cast<void *>(block))) return true;
    }
  }
  return false;
}

Evacuator::Choice Evacuator::choose(const Compaction &work) {
  Choice best;
  const uint64_t above = reclaim_.above_reserve();
  const auto consider = [&](const Choice &choice) {
    if (choice.free_bytes == 0) return;
    const uint64_t size = size_of(*choice.extent);
    if (choice.free_bytes == size || choice.free_bytes < size / 2) return;
    if (size > work.bytes_left || choice.free_bytes > above || !may_evacuate(*choice.extent)) return;
    const bool is_better =
        best.extent == nullptr || choice.free_bytes * (size_of(*best.extent) >> 20) > best.free_bytes * (size >> 20);
    if (is_better && !has_exports(choice)) best = choice;
  };
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region)) {
    if (region->whole || region->dedicated || region->paused.load(std::memory_order_relaxed) != 0) continue;
    Choice each;
    for_each_span(*region, [&](Span &span) {
      if (span.is(SpanState::kUnbacked)) return;
      for (uintptr_t at = span.begin(); at < span.end();) {
        Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
        if (extent != each.extent) {
          consider(each);
          each = Choice{extent, &span, 0};
        }
        if (is_free(span)) each.free_bytes += free_part(span, *extent).size;
        at = end_of(*extent);
      }
    });
    consider(each);
  }
  return best;
}

// Gives every free part a span of its own, in no list, and tells the pieces between them.
Status Evacuator::cut(const Choice &choice, Vector<Span *> *holes, Vector<Extents::Piece> *pieces) {
  const Extent &extent = *choice.extent;
  const auto no_memory = [] {
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to take a part out of an extent.");
  };
  uintptr_t at = base_of(extent);
  const auto piece_until = [&](uintptr_t end) {
    return end == at || pieces->push_back(Extents::Piece{{at, end - at}, PhysicalHandle{}, nullptr});
  };
  for (Span *span = choice.first; span != nullptr && span->begin() < end_of(extent); span = span->after) {
    if (!is_free(*span)) continue;
    const ByteRange part = free_part(*span, extent);
    if (part.size == 0) continue;
    if (!piece_until(part.base) || !holes->reserve(holes->size() + 1)) return no_memory();
    at = part.end();
    Span *rest = nullptr;
    runs_.unlist(span);
    if (part.base != span->begin()) {
      const bool good = runs_.split(span, part.base - span->begin(), &rest);
      runs_.list(span);
      if (!good) return no_memory();
      span = rest;
    }
    holes->push_back_reserved(span);
    if (part.end() != span->end()) {
      if (!runs_.split(span, part.size, &rest)) return no_memory();
      runs_.list(rest);
    }
  }
  return piece_until(end_of(extent)) ? Status() : no_memory();
}

Status Evacuator::evacuate(const Choice &choice, Compaction *work) {
  Vector<Span *> holes(core_.allocator);
  Vector<Extents::Piece> pieces(core_.allocator);
  const uint64_t size = size_of(*choice.extent);
  Status status = cut(choice, &holes, &pieces);
  if (status.ok()) status = extents_.evacuate(choice.extent, &pieces);
  for (Span *span : holes) {
    if (status.ok())
      runs_.make_hole(span);
    else
      runs_.make_free(span);
  }
  if (!status.ok()) return status;
  work->count(&work->released, choice.free_bytes);
  work->count(&work->moved, size - choice.free_bytes);
  return status;
}

}  // namespace gmm
