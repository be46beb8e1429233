// SPDX-License-Identifier: Apache-2.0
// Whether another process that this one is connected to still lives.
#ifndef GMM_BASE_PEER_H
#define GMM_BASE_PEER_H

#include <cstdint>

namespace gmm {

enum class PeerState { kAlive, kGone, kRevoked };

// Two descriptors: a connection that the other side never writes to but to revoke, and the process itself (pidfd). A connection alone
// does not end with the process when a child of it has inherited the other end. -1: there is none.
struct Peer {
  int32_t connection = -1;
  int32_t process = -1;

  // Does not wait. Never connected: alive, as there is nobody to lose.
  PeerState state() const;
};

// A descriptor of a process of this pid namespace, closed on exec; -1 where the kernel (before 5.3) or a filter of system calls has none.
int32_t open_process(int32_t pid);

}  // namespace gmm
#endif
