// SPDX-License-Identifier: Apache-2.0
// The importer's connections that it is done with, kept for its next import from the same exporter: that saves finding the socket,
// connecting, and checking who listens.
#ifndef GMM_ENGINE_IPC_IDLE_H
#define GMM_ENGINE_IPC_IDLE_H

#include <cstdint>

#include "base/lock.h"
#include "engine/ipc/client.h"

namespace gmm {

class IpcIdleConnections {
 public:
  static constexpr uint32_t kMost = 4;  // each is two descriptors here and one in the exporter

  // Gives back what the connection was granted. It is closed instead when that cannot be said; and the oldest one when there are too many.
  void keep(IpcConnection &&connection);
  // False: there is none to this exporter. It may have ended meanwhile, which shows when it is used.
  bool take(const IpcEndpoint &exporter, IpcConnection *out);
  void clear();

 private:
  Mutex mutex_;
  IpcConnection connections_[kMost];  // oldest first
  uint32_t count_ = 0;
};

}  // namespace gmm
#endif
