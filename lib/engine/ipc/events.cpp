// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/events.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/os_memory.h"
#include "base/process.h"

namespace gmm {
namespace {

// The protocol wants a size; an event has none.
constexpr uint64_t kEventSize = 4096;

}  // namespace

Status EventMaker::check(const char *operation) const {
  if (connection.alive()) return Status();
  return fail(GMM_ERROR_IPC_PEER_GONE,
              "%s: process %" PRIu32 ", which made the event, destroyed it or has ended; destroy the imported event.",
              operation, process);
}

SharedEvent *IpcEvents::find(uint64_t id) {
  for (SharedEvent *event : events_)
    if (event->id == id) return event;
  return nullptr;
}

Status IpcEvents::create(Device device, SharedEvent **out) {
  LockGuard guard(mutex_);
  SharedEvent *event = core_.allocator.create<SharedEvent>();
  const bool has_memory = event != nullptr && events_.reserve(events_.size() + 1);
  Status status = has_memory ? random_bytes(event->token, sizeof event->token)
                             : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for an event.");
  if (status.ok()) status = core_.backend->shared_event_create(device, &event->native);
  if (!status.ok()) {
    core_.allocator.destroy(event);
    return status;
  }
  event->device = device;
  event->id = next_id_.fetch_add(1, std::memory_order_relaxed);
  events_.push_back_reserved(event);
  *out = event;
  return Status();
}

Status IpcEvents::export_event(SharedEvent &event, gmm_ipc_handle *out) {
  IpcHandle handle;
  settings_.freeze();
  GMM_TRY(broker_.start(&handle.exporter));
  LockGuard guard(mutex_);
  int32_t fd = -1;
  GMM_TRY(core_.backend->shared_event_export(event.device, event.native, handle.legacy, &fd));
  if (fd >= 0) os::close_file(fd).ignore();  // grant() opens one for each importer
  handle.route = fd >= 0 ? IpcRoute::kBroker : IpcRoute::kLegacy;
  handle.event = 1;
  handle.device = event.device;
  std::memcpy(handle.token, event.token, sizeof handle.token);
  handle.allocation = event.id;
  handle.allocation_size = handle.block_size = kEventSize;
  ipc_handle_encode(handle, out);
  return Status();
}

Status IpcEvents::destroy(SharedEvent *event) {
  LockGuard guard(mutex_);
  if (event->references > 1 || event->importers != 0) {
    if (--event->references == 0) broker_.disconnect(event->id);
    return Status();
  }
  GMM_TRY(core_.backend->event_destroy(event->native));
  remove(event);
  return Status();
}

// With mutex_ held, after the backend destroyed its event.
void IpcEvents::remove(SharedEvent *event) {
  events_.erase_unordered(static_cast<uint64_t>(std::find(events_.begin(), events_.end(), event) - events_.begin()));
  core_.allocator.destroy(event);
}

// With mutex_ held.
void IpcEvents::destroy_if_unused(SharedEvent *event) {
  if (event->references != 0 || event->importers != 0) return;
  if (!core_.backend->event_destroy(event->native).ok())
    core_.log.write(LogLevel::kError, "cannot destroy an event that was exported: %s", last_message());
  remove(event);
}

// --- Imports --------------------------------------------------------------------------------------------------------

// CUDA opens no event in the process that made it.
Status IpcEvents::reference_own(const IpcHandle &handle, SharedEvent **out) {
  LockGuard guard(mutex_);
  SharedEvent *event = find(handle.allocation);
  if (event == nullptr || event->references == 0 || !ipc_token_equal(event->token, handle.token))
    return fail(GMM_ERROR_IPC_PEER_GONE, "gmm_event_import: this process made the event and has destroyed it since.");
  ++event->references;
  *out = event;
  return Status();
}

Status IpcEvents::import_event(const gmm_ipc_handle &bytes, Device device, uint64_t timeout_ms, EventMaker *maker,
                               NativeEvent *native, SharedEvent **event) {
  IpcHandle handle;
  GMM_TRY(ipc_handle_decode(bytes, &handle));
  if (handle.event == 0)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_event_import: the handle is of memory; pass it to gmm_ipc_import().");
  settings_.freeze();
  if (broker_.answers_at(handle.exporter)) return reference_own(handle, event);
  IpcAnswer granted;
  const IpcWant want = handle.route == IpcRoute::kBroker ? IpcWant::kDescriptors : IpcWant::kCount;
  GMM_TRY(ipc_connect(handle, want, timeout_ms, &maker->connection, &granted, settings_.policy()));
  maker->process = handle.exporter.pid;
  const int32_t fd = granted.fds.count != 0 ? granted.fds.each[0] : -1;
  return core_.backend->shared_event_import(device, handle.legacy, fd, maker->connection.peer, native);
}

// --- Importers ------------------------------------------------------------------------------------------------------

bool IpcEvents::has(uint64_t id) {
  LockGuard guard(mutex_);
  return find(id) != nullptr;
}

Status IpcEvents::grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  LockGuard guard(mutex_);
  SharedEvent *event = find(id);
  if (!out->counts) return fail(GMM_ERROR_IPC_REFUSED, "An event cannot be checked without an import.");
  if (event == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The event was destroyed.");
  if (!ipc_token_equal(event->token, token)) return fail(GMM_ERROR_IPC_REFUSED, "The token is not the event's.");
  if (event->references == 0) return fail(GMM_ERROR_IPC_PEER_GONE, "The event was destroyed.");
  uint8_t bytes[kLegacyHandleSize] = {};
  if (out->wants_fds) {
    int32_t fd = -1;
    GMM_TRY(core_.backend->shared_event_export(event->device, event->native, bytes, &fd));
    if (fd < 0) return fail(GMM_ERROR_NOT_SUPPORTED, "The event has no file descriptor.");
    out->add_extent(fd, kEventSize);
  }
  out->reply.allocation_size = kEventSize;
  ++event->importers;
  return Status();
}

void IpcEvents::importer_gone(uint64_t id) {
  LockGuard guard(mutex_);
  SharedEvent *event = find(id);
  if (event == nullptr) return;
  --event->importers;
  destroy_if_unused(event);
}

void IpcEvents::clear() {
  LockGuard guard(mutex_);
  while (!events_.empty()) {
    SharedEvent *event = events_.back();
    event->references = event->importers = 0;
    destroy_if_unused(event);
  }
}

}  // namespace gmm
