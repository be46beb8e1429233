// SPDX-License-Identifier: Apache-2.0
// Events that several processes use (GMM_EVENT_SHARED).
//
// Only the process that made an event records it; importers wait for it. On CUDA the driver shares the event; on the
// host backend it is a page that the maker writes and importers map read-only.
#ifndef GMM_ENGINE_IPC_EVENTS_H
#define GMM_ENGINE_IPC_EVENTS_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/client.h"
#include "engine/ipc/policy.h"
#include "engine/space/core.h"

namespace gmm {

// An event that this process made. It lives until this process has no handle of it and no importer is connected, since
// the driver forbids the use of an imported event whose original was destroyed.
struct SharedEvent {
  uint64_t id = 0;
  uint8_t token[kIpcTokenSize] = {};
  NativeEvent native = nullptr;
  Device device;
  uint32_t references = 1;  // gmm_event objects of this process; 0: the event ends with the last importer
  uint32_t importers = 0;
};

// The maker of an imported event.
struct EventMaker {
  IpcConnection connection;
  uint32_t process = 0;  // 0: the event is not imported

  // IPC_PEER_GONE when its maker destroyed the event or ended.
  Status check(const char *operation) const;
};

class IpcEvents {
 public:
  // `next_id` is the sequence that exports and events take their ids from.
  IpcEvents(Core &core, IpcSettings &settings, IpcBroker &broker, std::atomic<uint64_t> &next_id)
      : core_(core), settings_(settings), broker_(broker), next_id_(next_id), events_(core.allocator) {}

  // The maker's side. destroy() ends one reference.
  Status create(Device device, SharedEvent **out);
  Status export_event(SharedEvent &event, gmm_ipc_handle *out);
  Status destroy(SharedEvent *event);

  // Returns another process's event in *native, which the caller destroys before *maker, or one more reference to an
  // event of this context in *event.
  Status import_event(const gmm_ipc_handle &bytes, Device device, uint64_t timeout_ms, EventMaker *maker,
                      NativeEvent *native, SharedEvent **event);

  // For the broker (IpcResolver).
  bool has(uint64_t id);
  Status grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  void importer_gone(uint64_t id);

  // Destroys the events that the program did not. The broker is stopped.
  void clear();

 private:
  SharedEvent *find(uint64_t id);
  Status reference_own(const IpcHandle &handle, SharedEvent **out);
  void remove(SharedEvent *event);
  void destroy_if_unused(SharedEvent *event);

  Core &core_;
  IpcSettings &settings_;
  IpcBroker &broker_;
  std::atomic<uint64_t> &next_id_;
  Mutex mutex_{LockRank::kIpcEvents};
  Vector<SharedEvent *> events_;
};

}  // namespace gmm
#endif
