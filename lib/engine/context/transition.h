// SPDX-License-Identifier: Apache-2.0
// What takes pages from memory or gives it some, as operations of a context. Every entry of the interface, and every
// ticket, comes through here. The rooms do the transition; what spans other rooms stands in this file: the trim and
// retry when memory is short, revoked exports, the trace, and the watchers of a move or compaction.
#ifndef GMM_ENGINE_CONTEXT_TRANSITION_H
#define GMM_ENGINE_CONTEXT_TRANSITION_H

#include "engine/context/context.h"

namespace gmm {

// Pauses what the request names. GMM_PAUSE_FORCE revokes what importers hold of it.
Status pause(Context &context, const PauseRequest &request, uint64_t *bytes);
// Resumes what the request names. When memory is short, everything free goes back to the driver and the resume runs
// once more.
Status resume(Context &context, const PauseRequest &request, uint64_t *bytes);
// The same for the extents that the range touches.
Status resume_range(Context &context, ByteRange range, uint64_t *bytes);

// gmm_move() and gmm_compact(); the descriptor is checked. BUSY: a watcher stands in the way. Where memory is watched,
// they wait for other operations on its tags.
Status move(Context &context, void *memory, Device location, uint32_t flags, gmm_stream stream);
Status compact(Context &context, const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out);

}  // namespace gmm
#endif
