// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/stats.h"

namespace gmm {

Status collect_statistics(HeapSet &heaps, const gmm_scope_desc &scope, gmm_stats_info *out) {
  uint8_t seen[TagTable::kMaxTags / 8] = {};
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
    const gmm_tag tag = heap.options().tag;
    if (totals.held + totals.paused != 0 && (seen[tag / 8] >> tag % 8 & 1) == 0) {
      seen[tag / 8] = static_cast<uint8_t>(seen[tag / 8] | 1 << tag % 8);
      ++out->live_tags;
    }
    return Status();
  });
}

}  // namespace gmm
