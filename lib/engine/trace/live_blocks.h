// SPDX-License-Identifier: Apache-2.0
// The live blocks of a span, for what looks at all blocks of a heap.
#ifndef GMM_ENGINE_TRACE_LIVE_BLOCKS_H
#define GMM_ENGINE_TRACE_LIVE_BLOCKS_H

#include "engine/space/span.h"

namespace gmm {

// Calls fn(void *block, uint64_t requested_size), with the heap's lock held by the caller.
template <typename Fn>
void for_each_live_block(Span &span, Fn fn) {
  if (!span.live()) return;
  const uint32_t count = span.is_slab_object ? span.block_count.load(std::memory_order_relaxed) : 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t size = span.slot(i).load(std::memory_order_relaxed) & ~kUsedElsewhere;
    if (size != 0) fn(reinterpret_cast<void *>(span.block(i)), size);
  }
}

}  // namespace gmm
#endif
