// SPDX-License-Identifier: Apache-2.0
// Events that go from process to process (gmm_ipc_event_create). What is done with them is in Sharing (ipc_event.cpp).
#ifndef GMM_ENGINE_IPC_EVENT_H
#define GMM_ENGINE_IPC_EVENT_H

#include "backend/backend.h"
#include "engine/ipc/client.h"

namespace gmm {

// One that this process made. It lives until nobody here has it and no importer is connected, as the driver forbids to use an imported event
// of which the original was destroyed.
struct SharedEvent {
  uint64_t id = 0;
  uint8_t token[kIpcTokenSize] = {};
  NativeEvent native = nullptr;
  Device device;
  uint32_t references = 1;  // handles of this process; 0: it goes with the last importer
  uint32_t importers = 0;
};

// One of another process.
struct EventImport {
  IpcConnection connection;
  NativeEvent native = nullptr;
  uint32_t exporter = 0;  // its pid, for messages

  // IPC_PEER_GONE once its maker ended, or ended the event.
  Status check(const char *operation) const;
};

}  // namespace gmm
#endif
