// SPDX-License-Identifier: Apache-2.0
// The life of another process to which this one is connected.
#ifndef GMM_BASE_PEER_H
#define GMM_BASE_PEER_H

#include <cstdint>

namespace gmm {

enum class PeerState { kAlive, kGone, kRevoked };

// Two descriptors: a connection, and the process itself (pidfd). The other side writes a byte to the connection to
// revoke memory, and the server of published memory also messages. The connection alone does not tell the end of the
// process, because a child of it may have inherited the other end. -1: there is no such descriptor.
struct Peer {
  static constexpr char kRevocation = 'R';
  int32_t connection = -1;
  int32_t process = -1;

  // Does not wait. A peer that was never connected is alive.
  PeerState state() const;
};

// Opens a descriptor of a process in this pid namespace, closed on exec. -1: the kernel is older than 5.3, or a filter
// of system calls forbids it. `*is_gone`: there is no such process any more.
int32_t open_process(int32_t pid, bool *is_gone = nullptr);

}  // namespace gmm
#endif
