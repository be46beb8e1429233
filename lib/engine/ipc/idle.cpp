// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/idle.h"

namespace gmm {

void IpcIdleConnections::keep(IpcConnection &&connection) {
  IpcConnection kept = static_cast<IpcConnection &&>(connection);
  if (!kept.release()) return;
  LockGuard guard(mutex_);
  if (count_ == kMost) {
    for (uint32_t i = 1; i < kMost; ++i) connections_[i - 1] = static_cast<IpcConnection &&>(connections_[i]);
    --count_;
  }
  connections_[count_++] = static_cast<IpcConnection &&>(kept);
}

bool IpcIdleConnections::take(const IpcEndpoint &exporter, IpcConnection *out) {
  LockGuard guard(mutex_);
  // The newest: the exporter ends the oldest first.
  for (uint32_t i = count_; i-- > 0;) {
    if (!(connections_[i].exporter() == exporter)) continue;
    *out = static_cast<IpcConnection &&>(connections_[i]);
    for (--count_; i < count_; ++i) connections_[i] = static_cast<IpcConnection &&>(connections_[i + 1]);
    return true;
  }
  return false;
}

void IpcIdleConnections::clear() {
  LockGuard guard(mutex_);
  while (count_ != 0) connections_[--count_].close();
}

}  // namespace gmm
