// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/policy.h"

#include "base/local_socket.h"
#include "base/process.h"

namespace gmm {

// Root is no exception: nothing crosses from one user to another unless the policy names that user.
bool IpcPolicy::allows(uint32_t user) const {
  if (user == current_user()) return true;
  for (uint32_t i = 0; i < user_count; ++i)
    if (users[i] == user) return true;
  return false;
}

int check_peer_user(int socket, const IpcPolicy &policy, PeerUser *out) {
  *out = PeerUser();
  if (const int error = os::peer_of_socket(socket, &out->process, &out->user); error != 0) return error;
  out->is_allowed = policy.allows(out->user);
  return 0;
}

Status IpcSettings::configure(const IpcPolicy &policy) {
  LockGuard guard(mutex_);
  if (is_frozen_.load(std::memory_order_relaxed))
    return fail(GMM_ERROR_BUSY,
                "gmm_ipc_configure: the context has exported or imported already; configure it before that.");
  policy_ = policy;
  return Status();
}

void IpcSettings::freeze() {
  if (is_frozen_.load(std::memory_order_acquire)) return;
  LockGuard guard(mutex_);
  is_frozen_.store(true, std::memory_order_release);
}

}  // namespace gmm
