// SPDX-License-Identifier: Apache-2.0
// The snapshot: one JSON object that describes every heap, extent and live block of a context. FORMAT.md in this folder
// describes its fields.
#ifndef GMM_ENGINE_TRACE_SNAPSHOT_H
#define GMM_ENGINE_TRACE_SNAPSHOT_H

#include <gmm/stats.h>

#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

// Fails with IO if `write` stopped. The function holds the lock of `heaps` while it writes, so `write` must not call
// gmm.
Status write_snapshot(Core &core, HeapSet &heaps, TagTable &tags, gmm_write_fn write, void *user);

}  // namespace gmm
#endif
