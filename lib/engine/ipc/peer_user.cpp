// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/peer_user.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gmm {

// Root is no exception: nothing crosses from one user to another unless the policy names that user.
bool IpcPolicy::allows(uint32_t user) const {
  if (user == ::geteuid()) return true;
  for (uint32_t i = 0; i < user_count; ++i)
    if (users[i] == user) return true;
  return false;
}

int check_peer_user(int socket, const IpcPolicy &policy, PeerUser *out) {
  *out = PeerUser();
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return errno;
  out->process = credentials.pid;
  out->user = credentials.uid;
  out->is_allowed = policy.allows(credentials.uid);
  return 0;
}

}  // namespace gmm
