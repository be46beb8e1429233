// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/policy.h"

#include <cerrno>

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
  const int error = os::peer_of_socket(socket, &out->process, &out->user);
  return error != 0 ? error : policy.allows(out->user) ? 0 : EACCES;
}

Status IpcSettings::configure(const IpcPolicy &policy) {
  LockGuard guard(mutex_);
  if (is_frozen_)
    return fail(GMM_ERROR_BUSY,
                "gmm_ipc_configure: the context has exported or imported already; configure it before that.");
  policy_ = policy;
  return Status();
}

void IpcSettings::freeze() {
  LockGuard guard(mutex_);
  is_frozen_ = true;
}

}  // namespace gmm
