// SPDX-License-Identifier: Apache-2.0
// Counters added up, and the snapshot.
#ifndef GMM_ENGINE_STATS_H
#define GMM_ENGINE_STATS_H

#include <gmm/stats.h>

#include "engine/heap_set.h"
#include "engine/tag.h"

namespace gmm {

// Fills what the heaps of the scope tell; the rest of *out stays.
Status collect_statistics(HeapSet &heaps, const gmm_scope &scope, gmm_statistics *out);
// Format: lib/README.md, "Snapshot".
Status write_snapshot(Core &core, HeapSet &heaps, TagTable &tags, gmm_write_fn write, void *user);

}  // namespace gmm
#endif
