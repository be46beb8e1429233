// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/ipc.h"

namespace gmm {

Ipc::Ipc(Core &core, HeapSet &heaps, const ControlTaker &control)
    : core_(core),
      broker_(core.allocator, core.log, IpcResolver{resolve, importer_gone, this, control}, settings_.policy()),
      exports(core, heaps, settings_, broker_, next_id_),
      imports(core, settings_),
      events(core, settings_, broker_, next_id_),
      kept(core, settings_, exports, imports) {}

// A broker that runs before the first export is for requests of control alone, and moves to the new directory.
Status Ipc::configure(const IpcPolicy &policy) {
  const bool moves = broker_.is_running() && !settings_.is_frozen();
  if (moves) broker_.stop();
  Status status = settings_.configure(policy);
  if (moves) keep_first(&status, [&] { return listen(); });
  return status;
}

Status Ipc::listen() {
  IpcEndpoint unused;
  return broker_.start(&unused);
}

Status Ipc::import_block(const gmm_ipc_handle &bytes, Device device, uint64_t timeout_ms, void **out) {
  IpcHandle handle;
  GMM_TRY(ipc_handle_decode(bytes, &handle));
  if (handle.event)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_import: the handle is of an event; pass it to gmm_event_import().");
  settings_.freeze();
  const bool is_here = handle.route != IpcRoute::kFabric || handle.machine == ipc_machine();
  IpcExports *own = is_here && broker_.answers_at(handle.exporter) ? &exports : nullptr;
  return imports.import_block(handle, device, timeout_ms, own, out);
}

Status Ipc::close(void *memory) {
  bool found = false;
  Status status = kept.detach(memory, &found);
  if (!found) status = imports.close(memory, &found);
  if (found) return status;
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_close", &block));
  return fail(GMM_ERROR_UNBALANCED, "gmm_ipc_close(%p): the memory is this process's own and was not imported.",
              memory);
}

void Ipc::clear() {
  kept.clear();
  broker_.stop();
  events.clear();
  imports.clear();
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

}  // namespace gmm
