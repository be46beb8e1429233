// SPDX-License-Identifier: Apache-2.0
// Requests of other processes of this user: `gmm ps`, `gmm top`, and the commands with --pid (ipc/control_messages.h).
//
// The broker checks a request and hands its connection over. A thread of its own carries each request out, as that of a
// ticket does, sends the reply and closes the connection. So the broker waits for no operation, and the end of the
// asker changes nothing: a trace ends at its time, and a pause stays.
//
// Locks: `mutex_` is an operation's, as threads end under it. No request takes it.
// Callers: the broker's thread begins a request, and the context's end stops all.
#ifndef GMM_ENGINE_CONTEXT_CONTROL_H
#define GMM_ENGINE_CONTEXT_CONTROL_H

#include "base/lock.h"
#include "engine/ipc/control_messages.h"

namespace gmm {

class Context;

class Control : NoCopy {
 public:
  static constexpr uint32_t kMost = 8;  // requests at once

  explicit Control(Context &context) : context_(context) {}
  // Before the broker starts. Requests before it are refused.
  void allow() { is_allowed_ = true; }
  // As ControlTaker has it. BUSY: the asker may try again.
  static Status take(void *self, int32_t socket, const ControlRequest &request);
  // Cancels the requests that run, and returns when they have ended. No other one begins.
  void stop();

 private:
  struct Work;
  Status begin(int32_t socket, const ControlRequest &request);
  void end(Work **work);

  Context &context_;
  Mutex mutex_{LockRank::kControl};
  bool is_allowed_ = false;
  bool is_stopped_ = false;  // with mutex_
  Work *works_[kMost] = {};
};

}  // namespace gmm
#endif
