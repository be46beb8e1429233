// SPDX-License-Identifier: Apache-2.0
// Asks running processes of this user, over the sockets of their contexts (engine/ipc/control_messages.h).
#ifndef GMM_CLI_CONTROL_CONTROL_H
#define GMM_CLI_CONTROL_CONTROL_H

#include "cli/list.h"
#include "engine/ipc/control_messages.h"

namespace gmm {

struct Answer {
  IpcEndpoint asked;
  int32_t socket = -1;
  int32_t file = -1;   // of the reply
  ControlReply reply;  // its result and message are also those of a failure on the way
};

// The answers of the contexts of a process; 0: of all processes but this one. All requests are sent before the first
// answer is awaited, so one process that is stopped delays no other one's. The files end with the object.
struct Answers : NoCopy {
  Answers(int32_t process, const ControlRequest &request, uint64_t timeout_ms);
  ~Answers();
  List<Answer> list;
};

}  // namespace gmm
#endif
