// SPDX-License-Identifier: Apache-2.0
// The counters of the heaps, added up.
#ifndef GMM_ENGINE_LIMITS_STATS_H
#define GMM_ENGINE_LIMITS_STATS_H

#include <gmm/stats.h>

#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

// Fills what the heaps of the scope tell; the rest of *out stays. Waits for no operation.
Status collect_statistics(HeapSet &heaps, TagTable &tags, const gmm_scope_desc &scope, gmm_stats_info *out);

}  // namespace gmm
#endif
