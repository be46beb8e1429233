// SPDX-License-Identifier: Apache-2.0
// The policy of one context: the users that may share memory with this process, and the directory of the sockets. The
// program may set it until the first export or import uses it.
#ifndef GMM_ENGINE_IPC_POLICY_H
#define GMM_ENGINE_IPC_POLICY_H

#include <cstdint>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

inline constexpr uint64_t kIpcPathSize = 1024;

// The settings of gmm_ipc_configure(). All zero: the defaults.
struct IpcPolicy {
  static constexpr uint32_t kMaxUsers = 64;
  char directory[kIpcPathSize] = {};  // empty: the candidates of directory.h
  uint32_t users[kMaxUsers] = {};     // in addition to the user of this process
  uint32_t user_count = 0;

  bool allows(uint32_t user) const;
};
inline constexpr IpcPolicy kIpcDefaultPolicy;

// The process at the other end of a connected socket. The system recorded both fields when that process called
// connect() or listen().
struct PeerUser {
  int32_t process = 0;  // 0: it has no number in this pid namespace
  uint32_t user = 0;
};

// Reads the peer's user. Returns 0 or an error number; EACCES: the policy does not allow the user.
int check_peer_user(int socket, const IpcPolicy &policy, PeerUser *out);

// The policy as the program sets it.
class IpcSettings {
 public:
  // BUSY after the first freeze().
  Status configure(const IpcPolicy &policy);
  // Every export and import calls this before it uses the policy, which changes no more from then on.
  void freeze();
  bool is_frozen() {
    LockGuard guard(mutex_);
    return is_frozen_;
  }
  const IpcPolicy &policy() const { return policy_; }

 private:
  Mutex mutex_{LockRank::kIpcSettings};
  bool is_frozen_ = false;
  IpcPolicy policy_;
};

}  // namespace gmm
#endif
