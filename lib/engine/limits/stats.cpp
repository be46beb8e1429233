// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/stats.h"

namespace gmm {

Status collect_statistics(HeapSet &heaps, TagTable &tags, const gmm_scope_desc &scope, gmm_stats_info *out) {
  LockGuard guard(tags.count_mutex);
  const uint64_t count = ++tags.counts;
  const auto add = [&](Heap &heap) -> Status {
    const HeapTotals totals = heap.totals();
    out->live_bytes += totals.live_bytes;
    out->live_blocks += totals.live_blocks;
    out->peak_live_bytes += totals.peak_live;
    out->reserved_bytes += totals.held;
    out->peak_reserved_bytes += totals.peak_held;
    out->paused_bytes += totals.paused;
    out->foreign_bytes += totals.foreign;
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
  };
  return heaps.for_each(scope, add, false);
}

}  // namespace gmm
