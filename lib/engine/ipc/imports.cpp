// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/imports.h"

#include <cinttypes>

#include "base/os_memory.h"
#include "engine/ipc/descriptor.h"

namespace gmm {
namespace {

// The value of a mapping's range: the kind in bits 0 to 2, the legacy route in bit 3, the device in bits 4 to 11, and
// the two descriptors of the exporter, each plus 1, in 26 bits each. A query while another thread closes the last
// import may read closed descriptors; so may any other use of memory that is being freed.
constexpr uint64_t kLegacyBit = 1u << 3;
constexpr unsigned kConnectionShift = 12, kProcessShift = 38;
constexpr uint64_t kFdMask = (1u << 26) - 1;

uint64_t fd_bits(const Peer &peer) {
  const auto bits = [](int32_t fd) { return static_cast<uint64_t>(fd + 1) & kFdMask; };
  return bits(peer.connection) << kConnectionShift | bits(peer.process) << kProcessShift;
}

Range range_of(const IpcMapping &mapping) {
  return Range{reinterpret_cast<uint64_t>(mapping.base()), mapping.size(),
               static_cast<uint64_t>(mapping.kind()) | (mapping.is_legacy() ? kLegacyBit : 0) |
                   static_cast<uint64_t>(mapping.device().ordinal) << 4 | fd_bits(mapping.connection().peer())};
}

}  // namespace

PeerState IpcImports::state(const Range &range) {
  const auto fd = [&](unsigned shift) { return static_cast<int32_t>(range.value >> shift & kFdMask) - 1; };
  const Peer peer{fd(kConnectionShift), fd(kProcessShift)};
  return peer.connection < 0 ? PeerState::kAlive : peer.state();
}

Status IpcImports::check(const Range &range, const void *address, const char *operation) {
  const PeerState state = IpcImports::state(range);
  if (state == PeerState::kRevoked)
    return fail(GMM_ERROR_IPC_REVOKED,
                "%s(%p): the exporter revoked the memory by a forced pause; close the import, and import a new handle "
                "after the exporter resumed.",
                operation, address);
  if (state == PeerState::kGone && (range.value & kLegacyBit) != 0)
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "%s(%p): the exporter ended, and DEVICE memory ends with it; close the import.", operation, address);
  return Status();
}

Status IpcImports::import_block(const IpcHandle &handle, Device device, uint64_t timeout_ms, void **out) {
  LockGuard guard(mutex_);
  for (IpcMapping *known : mappings_) {
    if (!known->is_of(handle, device)) continue;
    const PeerState state = known->connection().state();
    if (state == PeerState::kRevoked)
      return fail(
          GMM_ERROR_IPC_REVOKED,
          "gmm_ipc_import: the exporter revoked the memory by a forced pause; close the imports that exist, and "
          "ask for a new handle after the exporter resumed.");
    if (state == PeerState::kGone)
      return fail(GMM_ERROR_IPC_PEER_GONE,
                  "gmm_ipc_import: the exporting process ended or revoked the memory; close the imports that exist.");
    ++known->references;
    *out = known->base() + handle.offset;
    return Status();
  }
  IpcMapping *mapping = nullptr;
  GMM_TRY(make(device, &mapping));
  return add(mapping, mapping->map_handle(handle, timeout_ms), handle.offset, out);
}

Status IpcImports::import_descriptor(int32_t fd, gmm_fd_type type, uint64_t size, Device device, void **out) {
  GMM_TRY(check_descriptor(fd, &type));
  const uint64_t unit = type == GMM_FD_OPAQUE ? kExtentAlignment : os::page_size();
  if (size == 0 || size % unit != 0 || size > UINT64_MAX / 2)
    return fail(GMM_ERROR_INVALID_SIZE,
                "gmm_ipc_import_fd(%" PRId32 "): the size is %" PRIu64
                " bytes; memory of type %s has a multiple of %" PRIu64 " bytes.",
                fd, size, descriptor_type_name(type), unit);
  if (type == GMM_FD_OPAQUE && (core_.traits(device).capabilities & GMM_DEVICE_IS_CPU) != 0)
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm_ipc_import_fd(%" PRId32 "): device %d maps files only; pass GMM_FD_FILE.",
                fd, device.ordinal);
  LockGuard guard(mutex_);
  IpcMapping *mapping = nullptr;
  GMM_TRY(make(device, &mapping));
  return add(mapping, mapping->map_descriptor(fd, type, size), 0, out);
}

// An empty mapping, and the memory for add(). With mutex_ held until add() returns.
Status IpcImports::make(Device device, IpcMapping **out) {
  IpcMapping *mapping = core_.allocator.create<IpcMapping>(*core_.backend, client_, device);
  if (mapping == nullptr || !mappings_.reserve(mappings_.size() + 1) || !ranges_.reserve(mappings_.size() + 1) ||
      !table_.reserve(mappings_.size() + 1)) {
    core_.allocator.destroy(mapping);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an import.");
  }
  *out = mapping;
  return Status();
}

// Adds a mapping to the table, or removes what a failed one left.
Status IpcImports::add(IpcMapping *mapping, const Status &mapped, uint64_t offset, void **out) {
  if (!mapped.ok()) {
    MessageGuard guard;
    if (!mapping->unmap().ok())
      core_.log.write(LogLevel::kError, "a failed import leaves memory mapped: %s", last_message());
    core_.allocator.destroy(mapping);
    return mapped;
  }
  mappings_.push_back_reserved(mapping);
  (void)publish();  // make() reserved the memory
  *out = mapping->base() + offset;
  return Status();
}

bool IpcImports::publish() {
  ranges_.clear();
  if (!ranges_.reserve(mappings_.size()) || !table_.reserve(mappings_.size())) return false;
  uint64_t bytes = 0;
  for (const IpcMapping *mapping : mappings_) {
    const Range range = range_of(*mapping);
    uint64_t at = ranges_.size();
    while (at > 0 && ranges_[at - 1].base > range.base) --at;
    if (!ranges_.insert(at, range)) return false;
    bytes += range.size;
  }
  table_.set(ranges_.data(), ranges_.size());
  bytes_.store(bytes, std::memory_order_relaxed);
  return true;
}

Status IpcImports::close(void *memory, bool *found) {
  LockGuard guard(mutex_);
  *found = false;
  for (uint64_t i = 0; i < mappings_.size(); ++i) {
    IpcMapping *mapping = mappings_[i];
    if (!mapping->contains(memory)) continue;
    *found = true;
    if (mapping->references > 1) {
      --mapping->references;
      return Status();
    }
    GMM_TRY(core_.backend->synchronize(mapping->device()));
    GMM_TRY(mapping->unmap());
    mappings_.erase_unordered(i);
    core_.allocator.destroy(mapping);
    (void)publish();
    return Status();
  }
  return Status();
}

void IpcImports::clear() {
  LockGuard guard(mutex_);
  while (!mappings_.empty()) {
    IpcMapping *mapping = mappings_.pop_back();
    if (!mapping->unmap().ok()) core_.log.write(LogLevel::kError, "cannot close an import: %s", last_message());
    core_.allocator.destroy(mapping);
  }
  client_.close_idle();
  (void)publish();
}

}  // namespace gmm
