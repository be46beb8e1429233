// SPDX-License-Identifier: Apache-2.0
// Announces extents whose contents a resume brought back, to the callers of gmm_resume_wait().
#ifndef GMM_ENGINE_PAUSE_READY_SIGNAL_H
#define GMM_ENGINE_PAUSE_READY_SIGNAL_H

#include "base/lock.h"
#include "engine/space/page_map.h"

namespace gmm {

class ReadySignal {
 public:
  // The ready lock. It follows the lock of a heap. A resume holds it to change Extent::state and to end paused extents.
  Mutex mutex{LockRank::kReadySignal};

  // The contents of the extent are back: it becomes kRestored, and the callers that wait look again.
  void announce(Extent &extent);
  // Waits until no extent of the range is paused. Restored ones become kPromised, which a failed resume leaves active.
  // NOT_READY: the time passed first. UNKNOWN_POINTER: an address has no extent.
  Status wait(PageMap &page_map, const void *address, uint64_t size, uint64_t timeout_ms);

 private:
  Condition restored_;
};

}  // namespace gmm
#endif
