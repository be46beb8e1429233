// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/ipc.h"

namespace gmm {

Ipc::Ipc(Core &core, HeapSet &heaps)
    : log_(core.log),
      broker_(core.allocator, core.log, IpcResolver{resolve, importer_gone, this, catch_up}, settings_.policy()),
      exports(core, heaps, settings_, broker_, next_id_),
      imports(core, settings_),
      events(core, settings_, broker_, next_id_) {}

Status Ipc::import_block(const gmm_ipc_handle &bytes, Device device, uint64_t timeout_ms, void **out) {
  IpcHandle handle;
  GMM_TRY(ipc_handle_decode(bytes, &handle));
  if (handle.event)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_import: the handle is of an event; pass it to gmm_event_import().");
  settings_.freeze(log_);
  const bool is_here = handle.route != IpcRoute::kFabric || handle.machine == ipc_machine();
  if (is_here && broker_.answers_at(handle.exporter)) return exports.import_own(handle, out);
  return imports.import_block(handle, device, timeout_ms, out);
}

Status Ipc::close(void *memory) {
  bool found = false;
  const Status status = imports.close(memory, &found);
  return found ? status : exports.close_own(memory);
}

void Ipc::clear() {
  broker_.stop();
  events.clear();
  imports.clear();
  exports.clear();
}

// Exports and events take their ids from one sequence.
Status Ipc::resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  Ipc &ipc = *static_cast<Ipc *>(self);
  return ipc.events.has(id) ? ipc.events.grant(id, token, out) : ipc.exports.grant(id, token, out);
}

void Ipc::importer_gone(void *self, uint64_t id) {
  Ipc &ipc = *static_cast<Ipc *>(self);
  // An event with an importer does not end, so the answer holds.
  if (ipc.events.has(id)) return ipc.events.importer_gone(id);
  ipc.exports.importer_gone(id);
}

bool Ipc::catch_up(void *self) { return static_cast<Ipc *>(self)->exports.catch_up(); }

}  // namespace gmm
