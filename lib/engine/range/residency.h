// SPDX-License-Identifier: Apache-2.0
// Where the pages of a block lie: advice, prefetch and moves. The functions keep no state. A move of VMM memory holds
// the heap's lock.
#ifndef GMM_ENGINE_RANGE_RESIDENCY_H
#define GMM_ENGINE_RANGE_RESIDENCY_H

#include <gmm/residency.h>

#include "engine/space/core.h"

namespace gmm {

Status advise(Core &core, void *memory, uint64_t size, gmm_advice advice, Device location);
Status prefetch(Core &core, void *memory, uint64_t size, Device location, gmm_stream stream);
// Whether a move of VMM memory may begin, and the memory that changes its pages. UNCHANGED: it is there already. The
// answer may have changed when the move begins.
Status check_move(Core &core, void *memory, Device location, gmm_stream stream, ByteRange *out);
Status move(Core &core, void *memory, Device location, uint32_t flags, gmm_stream stream);

}  // namespace gmm
#endif
