// SPDX-License-Identifier: Apache-2.0
#include "base/peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gmm {
namespace {

#ifdef SYS_pidfd_open
constexpr long kPidfdOpen = SYS_pidfd_open;
#else
constexpr long kPidfdOpen = 434;  // the same on every architecture
#endif

}  // namespace

PeerState Peer::state() const {
  pollfd looked[2] = {{connection, POLLIN | POLLRDHUP, 0}, {process, POLLIN, 0}};
  if (::poll(looked, 2, 0) <= 0) return PeerState::kAlive;  // poll() ignores descriptors of -1
  if (looked[0].revents != 0) {
    char byte = 0;
    if (::recv(connection, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
      return byte == kRevocation ? PeerState::kRevoked : PeerState::kAlive;
  }
  return PeerState::kGone;
}

int32_t open_process(int32_t pid, bool *is_gone) {
  const int32_t process = static_cast<int32_t>(::syscall(kPidfdOpen, pid, 0u));
  if (is_gone != nullptr) *is_gone = process < 0 && errno == ESRCH;
  return process;
}

}  // namespace gmm
