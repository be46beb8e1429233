// SPDX-License-Identifier: Apache-2.0
// The policy of one context, which the program may set until the first export or import uses it.
#ifndef GMM_ENGINE_IPC_SETTINGS_H
#define GMM_ENGINE_IPC_SETTINGS_H

#include <atomic>

#include "base/lock.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/ipc/directory.h"
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
  // The first call warns when GMM_IPC_DIR does not count. The caller holds no lock, as the log is the program's.
  void freeze(const Log &log) {
    if (is_frozen_.load(std::memory_order_acquire)) return;
    {
      LockGuard guard(mutex_);
      if (is_frozen_.load(std::memory_order_relaxed)) return;
      is_frozen_.store(true, std::memory_order_release);
    }
    if (const char *reason = ipc_directory_ignored_because(policy_))
      log.write(LogLevel::kWarning,
                "ipc: GMM_IPC_DIR counts as not set, because it %s; set it to an absolute path of less than %u bytes",
                reason, static_cast<unsigned>(kIpcPathSize));
  }
  const IpcPolicy &policy() const { return policy_; }

 private:
  Mutex mutex_;
  std::atomic<bool> is_frozen_{false};
  IpcPolicy policy_;
};

}  // namespace gmm
#endif
