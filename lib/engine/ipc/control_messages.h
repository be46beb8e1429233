// SPDX-License-Identifier: Apache-2.0
// The requests of another process of the same user to a context that allows them, over the broker's socket. `gmm ps`,
// `gmm top` and the commands with --pid send them.
//
// A reply comes when the request is carried out. A refusal of the broker is an IpcReply, whose fields a ControlReply
// begins with.
#ifndef GMM_ENGINE_IPC_CONTROL_MESSAGES_H
#define GMM_ENGINE_IPC_CONTROL_MESSAGES_H

#include "base/status.h"
#include "engine/ipc/protocol.h"

namespace gmm {

enum class ControlVerb : uint32_t {
  kState = 1,     // a file with a ControlHeap of each heap
  kSnapshot = 2,  // a file with the text of gmm_snapshot_write()
  kTrace = 3,     // a file with the trace of so many milliseconds
  kPause = 4,
  kResume = 5,
};

struct ControlRequest {
  static constexpr uint64_t kMostMilliseconds = 3'600'000;
  IpcRequest head{.want = IpcWant::kControl};  // it names no allocation
  ControlVerb verb = ControlVerb::kState;
  uint32_t reserved = 0;
  uint64_t milliseconds = 0;  // of a trace
  char tag[64] = {};          // of a pause or resume: its name
};
static_assert(sizeof(ControlRequest) == 128);

struct ControlReply {
  uint32_t magic = IpcReply::kMagic;
  uint16_t version = kIpcProtocolVersion;
  uint16_t files = 0;  // 1: a descriptor comes with the reply
  int32_t result = 0;  // gmm_result
  uint32_t reserved = 0;
  uint64_t bytes = 0;      // that a pause or resume moved
  char message[512] = {};  // of a failure; empty in a refusal of the broker
};
static_assert(offsetof(ControlReply, message) == 24);

struct ControlHeap {
  char tag[64] = {};
  uint8_t uuid[16] = {};  // of the device
  uint32_t kind = 0, reserved = 0;
  uint64_t live_bytes = 0, reserved_bytes = 0, paused_bytes = 0;
  uint64_t kept_bytes = 0;   // contents in the backup; UINT64_MAX: an operation has the heap
  uint64_t allocations = 0;  // since the heap began
  uint64_t limit_bytes = 0;  // of the tag on this device, or on all: the lower one
  uint64_t pauses = 0;       // of the tag
};

// Carries out a request by this user. A success takes over the socket. It must not wait.
struct ControlTaker {
  Status (*take)(void *user, int32_t socket, const ControlRequest &request) = nullptr;
  void *user = nullptr;
};

}  // namespace gmm
#endif
