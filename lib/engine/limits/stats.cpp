// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/stats.h"

namespace gmm {

Status collect_statistics(HeapSet &heaps, const TagTable &tags, const gmm_scope_desc &scope, gmm_stats_info *out) {
  static constinit std::atomic<uint64_t> counts{0};
  const uint64_t count = counts.fetch_add(1, std::memory_order_relaxed) + 1;
  return heaps.for_each(scope, [&](Heap &heap) -> Status {
    const HeapTotals totals = heap.totals();
    out->live_bytes += totals.live_bytes;
    out->live_blocks += totals.live_blocks;
    out->peak_live_bytes += totals.peak_live;
    out->reserved_bytes += totals.held;
    out->peak_reserved_bytes += totals.peak_held;
    out->paused_bytes += totals.paused;
    out->cached_bytes += totals.free_bytes;
    out->allocations += totals.allocations;
    out->frees += totals.frees;
    out->failures += totals.failures;
    out->extents += totals.extents;
    Tag &tag = *tags.get(heap.options().tag);
    if (totals.held + totals.paused != 0 && tag.counted != count) {
      tag.counted = count;
      ++out->live_tags;
    }
    return Status();
  });
}

}  // namespace gmm
