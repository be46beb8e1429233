// SPDX-License-Identifier: Apache-2.0
// Pause and resume as operations of a context. Every entry of the interface, and every ticket, comes through here. The pauser does the
// transition; what spans other rooms stands in this file: the trim and retry when memory is short, revoked exports, and the trace.
#ifndef GMM_ENGINE_CONTEXT_TRANSITION_H
#define GMM_ENGINE_CONTEXT_TRANSITION_H

#include "engine/context/context.h"

namespace gmm {

// Pauses what the request names. GMM_PAUSE_FORCE revokes what importers hold of it.
Status pause(Context &context, const PauseRequest &request, uint64_t *bytes);
// Resumes what the request names. When memory is short, everything free goes back to the driver and the resume runs once more.
Status resume(Context &context, const PauseRequest &request, uint64_t *bytes);
// The same for the extents that the range touches.
Status resume_range(Context &context, ByteRange range, uint64_t *bytes);

}  // namespace gmm
#endif
