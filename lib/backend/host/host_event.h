// SPDX-License-Identifier: Apache-2.0
// An event of the host backend: the position that a stream had when the event was recorded.
//
// An event may be destroyed at any time, because waits hold the position themselves. Lock: `mutex_` guards the
// position; a stream's lock is taken under it.
#ifndef GMM_BACKEND_HOST_HOST_EVENT_H
#define GMM_BACKEND_HOST_HOST_EVENT_H

#include "backend/host/host_stream.h"

namespace gmm {

class HostEvent {
 public:
  // Owns the caller's reference to `shared`. NULL: the event is of this process alone.
  explicit HostEvent(HostSharedEvent *shared = nullptr) : shared_(shared) {}
  // Only a shared event can fail.
  Status record(HostStream *stream);
  // Returns the stream with a reference for the caller. NULL: the event was never recorded.
  HostStream *get(uint64_t *position);
  // Not NULL if other processes see the event or made it.
  HostSharedEvent *shared() const { return shared_; }
  ~HostEvent();

 private:
  HostSharedEvent *const shared_;
  Mutex mutex_{LockRank::kHostEvent};
  HostStream *stream_ = nullptr;
  uint64_t position_ = 0;
};

}  // namespace gmm
#endif
