// SPDX-License-Identifier: Apache-2.0
// The snapshot: every heap, extent and live block of a context as one JSON object.
#ifndef GMM_ENGINE_TRACE_SNAPSHOT_H
#define GMM_ENGINE_TRACE_SNAPSHOT_H

#include <gmm/stats.h>

#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

// Writes the format that lib/README.md, "Snapshot", describes.
Status write_snapshot(Core &core, HeapSet &heaps, TagTable &tags, gmm_write_fn write, void *user);

}  // namespace gmm
#endif
