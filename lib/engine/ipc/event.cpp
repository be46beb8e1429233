// SPDX-License-Identifier: Apache-2.0
// Events between processes: made here, opened there.
#include "engine/ipc/event.h"

#include <unistd.h>

#include <cinttypes>
#include <cstring>

#include "base/process.h"
#include "engine/ipc/ipc.h"

namespace gmm {
namespace {

// What stands for a size where the protocol wants one.
constexpr uint64_t kEventSize = 4096;

}  // namespace

Status EventImport::check(const char *operation) const {
  if (connection.alive()) return Status();
  return fail(GMM_ERROR_IPC_PEER_GONE,
              "%s: the event's maker, process %" PRIu32 ", ended it or has ended itself; destroy the event.", operation,
              exporter);
}

SharedEvent *Sharing::event_of(uint64_t id) {
  for (SharedEvent *event : events_)
    if (event->id == id) return event;
  return nullptr;
}

Status Sharing::create_event(Device device, SharedEvent **out) {
  LockGuard guard(mutex_);
  SharedEvent *event = core_.allocator.create<SharedEvent>();
  if (event == nullptr || !events_.reserve(events_.size() + 1)) {
    core_.allocator.destroy(event);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for an event.");
  }
  event->id = next_id_;
  event->device = device;
  Status status = random_bytes(event->token, sizeof event->token);
  if (status.ok()) status = core_.backend->shared_event_create(device, &event->native);
  if (!status.ok()) {
    core_.allocator.destroy(event);
    return status;
  }
  ++next_id_;
  events_.push_back_reserved(event);
  *out = event;
  return Status();
}

Status Sharing::export_event(SharedEvent &event, gmm_ipc_handle *out) {
  LockGuard guard(mutex_);
  GMM_TRY(start_broker());
  IpcHandle handle;
  int32_t fd = -1;
  GMM_TRY(core_.backend->shared_event_export(event.native, handle.legacy, &fd));
  if (fd >= 0) ::close(fd);  // the broker opens another for each importer
  handle.route = fd >= 0 ? IpcRoute::kBroker : IpcRoute::kLegacy;
  handle.event = true;
  handle.device = event.device;
  std::memcpy(handle.device_uuid, core_.traits(event.device).uuid, sizeof handle.device_uuid);
  handle.exporter = endpoint_;
  std::memcpy(handle.token, event.token, sizeof handle.token);
  handle.allocation = event.id;
  handle.allocation_size = handle.block_size = kEventSize;
  ipc_handle_encode(handle, out);
  return Status();
}

// With mutex_ held, on the broker's thread.
Status Sharing::resolve_event(SharedEvent &event, IpcGrant *out) {
  if (event.references == 0) return fail(GMM_ERROR_IPC_PEER_GONE, "The event was destroyed.");
  uint8_t bytes[kLegacyHandleSize] = {};
  if (out->wants_fd) GMM_TRY(core_.backend->shared_event_export(event.native, bytes, &out->fd));
  out->allocation_size = kEventSize;
  ++event.importers;
  return Status();
}

// An event of this very context, once more: CUDA opens no event in the process that made it. With mutex_ held.
Status Sharing::find_own_event(const IpcHandle &handle, SharedEvent **out) {
  SharedEvent *event = event_of(handle.allocation);
  if (event == nullptr || event->references == 0 || !ipc_token_equal(event->token, handle.token))
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "gmm_ipc_event_import: this process made the event and has destroyed it since.");
  ++event->references;
  *out = event;
  return Status();
}

Status Sharing::import_event(const gmm_ipc_handle &bytes, Device device, uint32_t timeout_ms, EventImport **import,
                             SharedEvent **event) {
  *import = nullptr;
  *event = nullptr;
  IpcHandle handle;
  GMM_TRY(ipc_handle_decode(bytes, &handle));
  if (!handle.event)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_event_import: the handle is of memory; pass it to gmm_ipc_import().");
  {
    LockGuard guard(mutex_);
    settled_ = true;
    if (serving_ && handle.exporter == endpoint_) return find_own_event(handle, event);
  }
  EventImport *made = core_.allocator.create<EventImport>();
  if (made == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for an event.");
  made->exporter = handle.exporter.pid;
  IpcImport granted;
  const IpcWant want = handle.route == IpcRoute::kBroker ? IpcWant::kDescriptor : IpcWant::kCount;
  Status status = ipc_connect(handle, want, timeout_ms, &granted, policy_);
  if (status.ok()) {
    made->connection = static_cast<IpcConnection &&>(granted.connection);
    status =
        core_.backend->shared_event_import(device, handle.legacy, granted.fd, made->connection.peer(), &made->native);
    if (granted.fd >= 0) ::close(granted.fd);
  }
  if (!status.ok()) {
    core_.allocator.destroy(made);
    return status;
  }
  *import = made;
  return Status();
}

// With mutex_ held.
void Sharing::finish_event(uint64_t index) {
  SharedEvent *event = events_[index];
  if (event->references != 0 || event->importers != 0) return;
  if (!core_.backend->event_destroy(event->native).ok())
    core_.log.write(LogLevel::kError, "An event that was exported could not be destroyed: %s", last_message());
  events_.erase_unordered(index);
  core_.allocator.destroy(event);
}

Status Sharing::end_event(SharedEvent *event) {
  LockGuard guard(mutex_);
  if (event->references > 1 || event->importers != 0) {
    if (--event->references == 0) broker_.disconnect(event->id);
    return Status();
  }
  GMM_TRY(core_.backend->event_destroy(event->native));
  for (uint64_t i = 0; i < events_.size(); ++i)
    if (events_[i] == event) events_.erase_unordered(i--);
  core_.allocator.destroy(event);
  return Status();
}

Status Sharing::end_import(EventImport *import) {
  GMM_TRY(core_.backend->event_destroy(import->native));
  core_.allocator.destroy(import);
  return Status();
}

// The broker is stopped. Events that the program never destroyed go with the context.
void Sharing::end_events() {
  LockGuard guard(mutex_);
  while (!events_.empty()) {
    events_.back()->references = events_.back()->importers = 0;
    finish_event(events_.size() - 1);
  }
}

}  // namespace gmm
