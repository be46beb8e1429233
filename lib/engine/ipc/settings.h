// SPDX-License-Identifier: Apache-2.0
// The policy of one context, which the program may set until the first export or import uses it.
#ifndef GMM_ENGINE_IPC_SETTINGS_H
#define GMM_ENGINE_IPC_SETTINGS_H

#include <atomic>

#include "base/lock.h"
#include "base/status.h"
#include "engine/ipc/peer_user.h"

namespace gmm {

class IpcSettings {
 public:
  // BUSY after the first freeze().
  Status configure(const IpcPolicy &policy) {
    LockGuard guard(mutex_);
    if (is_frozen_.load(std::memory_order_relaxed))
      return fail(GMM_ERROR_BUSY,
                  "gmm_ipc_configure: the context has exported or imported already; configure it before that.");
    policy_ = policy;
    return Status();
  }
  // Every export and import calls this before it uses the policy, which changes no more from then on.
  void freeze() {
    if (is_frozen_.load(std::memory_order_acquire)) return;
    LockGuard guard(mutex_);
    is_frozen_.store(true, std::memory_order_release);
  }
  const IpcPolicy &policy() const { return policy_; }

 private:
  Mutex mutex_{LockRank::kIpcSettings};
  std::atomic<bool> is_frozen_{false};
  IpcPolicy policy_;
};

}  // namespace gmm
#endif
