// SPDX-License-Identifier: Apache-2.0
// The way to the server of the machine, `gmm serve`: connections, and the start of a server where there is none.
//
// Owns: the folder of the server's socket, and the process that starts a server. Its user's lock guards it.
// Callers: kept.cpp, context/lease.cpp.
#ifndef GMM_ENGINE_IPC_SERVE_LINK_H
#define GMM_ENGINE_IPC_SERVE_LINK_H

#include "base/no_copy.h"
#include "engine/ipc/policy.h"

namespace gmm {

// The clause of a message about an error of start_error(); "": there was none.
struct StartFailureText {
  explicit StartFailureText(int error);
  char text[160] = "";
};

class ServeLink : NoCopy {
 public:
  static constexpr uint64_t kMostRetryMs = 500;  // between tries to connect
  ~ServeLink();
  // The policy lives as long as the link, and does not change.
  Status open(const IpcPolicy &policy);
  // One try to connect to a server of a permitted user; *out is -1 after a failure. Starts one where there is none, and
  // `may_start`. 0 or the system's error number.
  int connect(bool may_start, int32_t *out, PeerUser *peer);
  // The starter ends as soon as its child goes on by itself. False: it has not ended yet.
  bool reap_starter();
  const char *folder() const { return folder_; }
  int start_error() const { return start_error_; }  // of the last try to start a server

 private:
  void start_server();

  const IpcPolicy *policy_ = nullptr;
  char folder_[kIpcPathSize] = {};  // of the server's socket
  int32_t directory_ = -1;
  int32_t starter_ = 0;  // the process that starts a server; 0: none
  uint64_t start_at_ = 0;
  int start_error_ = 0;
};

}  // namespace gmm
#endif
