// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/imports.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/os_memory.h"
#include "base/process.h"
#include "engine/ipc/descriptor.h"

namespace gmm {
namespace {

// The value of a mapping's range: the kind in bits 0 to 2, the legacy route in bit 3, the device in bits 4 to 10,
// whether it is read-only in bit 11, and the two descriptors of the exporter, each plus 1, in 26 bits each. A query
// while another thread closes the last import may read closed descriptors; so may any other use of memory that is being
// freed.
constexpr uint64_t kLegacyBit = 1u << 3, kReadOnlyBit = 1u << 11;
constexpr unsigned kConnectionShift = 12, kProcessShift = 38;
constexpr uint64_t kFdMask = (1u << 26) - 1;

uint64_t fd_bits(const Peer &peer) {
  const auto bits = [](int32_t fd) { return static_cast<uint64_t>(fd + 1) & kFdMask; };
  return bits(peer.connection) << kConnectionShift | bits(peer.process) << kProcessShift;
}

Range range_of(const IpcMapping &mapping) {
  return Range{reinterpret_cast<uint64_t>(mapping.base()), mapping.size(),
               static_cast<uint64_t>(mapping.kind()) | static_cast<uint64_t>(mapping.device().ordinal) << 4 |
                   (mapping.is_legacy() ? kLegacyBit : 0) | (mapping.is_read_only() ? kReadOnlyBit : 0) |
                   fd_bits(mapping.connection().peer)};
}

}  // namespace

int32_t IpcImports::connection(const Range &range) {
  return static_cast<int32_t>(range.value >> kConnectionShift & kFdMask) - 1;
}

PeerState IpcImports::state(const Range &range) {
  const Peer peer{connection(range), static_cast<int32_t>(range.value >> kProcessShift & kFdMask) - 1};
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

Status IpcImports::check_operand(const Range &range, const void *address, uint64_t size, bool writes,
                                 const char *operation) const {
  GMM_TRY(check(range, address, operation));
  if (writes && is_read_only(range))
    return fail(GMM_ERROR_INVALID_VALUE,
                "%s(%p): the memory is attached to be read only; attach it without GMM_ATTACH_READ_ONLY to write.",
                operation, address);
  Range block;
  if (!find_block(address, &block))
    return fail(GMM_ERROR_INVALID_SIZE,
                "%s(%p): the address is mapped for an import, but lies in no imported block; import that block too.",
                operation, address);
  const uint64_t left = block.base + block.size - reinterpret_cast<uint64_t>(address);
  if (size <= left) return Status();
  return fail(GMM_ERROR_INVALID_SIZE,
              "%s(%p): %" PRIu64 " bytes reach past the imported block, which ends after %" PRIu64 " more.", operation,
              address, size, left);
}

// --- Imports --------------------------------------------------------------------------------------------------------

IpcMapping *IpcImports::find_mapping(const IpcHandle &handle, Device device) {
  for (IpcMapping *mapping : mappings_)
    if (mapping->is_of(handle, device)) return mapping;
  return nullptr;
}

IpcImports::ImportedBlock *IpcImports::find_imported(const IpcMapping &mapping, const uint8_t token[kIpcTokenSize]) {
  for (ImportedBlock &block : blocks_)
    if (block.mapping == &mapping && std::memcmp(block.token, token, sizeof block.token) == 0) return &block;
  return nullptr;
}

int64_t IpcImports::blocks_of(const IpcMapping &mapping) const {
  return std::count_if(blocks_.begin(), blocks_.end(),
                       [&](const ImportedBlock &block) { return block.mapping == &mapping; });
}

Status IpcImports::import_block(const IpcHandle &handle, Device device, uint64_t timeout_ms, IpcExports *own,
                                void **out) {
  if (own != nullptr) device = handle.device;
  const uint64_t deadline = deadline_after(timeout_ms);
  LockGuard guard(mutex_);
  IpcMapping *known = nullptr;
  while ((known = find_mapping(handle, device)) != nullptr && known->phase != IpcMapping::Phase::kMapped) {
    const uint64_t left = milliseconds_until(deadline);
    if (left == 0)
      return fail(GMM_ERROR_IPC_TIMEOUT,
                  "import from process %" PRIu32
                  ": another thread maps or unmaps the same memory, and was not done in time; the exporter may be "
                  "stopped or busy",
                  handle.exporter.pid);
    changed_.wait_for(mutex_, std::min<uint64_t>(left, 60'000));
  }
  if (known != nullptr) return add_to_mapping(*known, handle, deadline, out);
  IpcMapping *mapping = core_.allocator.create<IpcMapping>(*core_.backend, device, handle, own);
  const auto map = [&]() -> Status { return mapping->map_handle(milliseconds_until(deadline), policy_); };
  return add_mapping(mapping, map, out);
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
  IpcHandle whole;  // of no exporter: one block, which is all of the memory
  whole.allocation_size = whole.block_size = size;
  IpcMapping *mapping = core_.allocator.create<IpcMapping>(*core_.backend, device, whole, nullptr);
  const auto map = [&]() -> Status { return mapping->map_descriptor(fd, type, size); };
  LockGuard guard(mutex_);
  return add_mapping(mapping, map, out);
}

Status IpcImports::attach(const KeptMemory &memory, const int32_t *fds, Device device, uint32_t flags, int32_t socket,
                          void **out) {
  IpcHandle whole;  // of no exporter
  whole.allocation_size = memory.size;
  whole.block_size = memory.block_size;
  whole.offset = whole.block_offset = memory.block_offset;
  IpcMapping *mapping = core_.allocator.create<IpcMapping>(*core_.backend, device, whole, nullptr);
  if (mapping != nullptr)
    mapping->own(socket);
  else
    os::close_socket(socket);
  const auto map = [&]() -> Status { return mapping->map_kept(memory, fds, flags); };
  LockGuard guard(mutex_);
  return add_mapping(mapping, map, out);
}

// Adds a mapping and the block of its handle. `map` maps it, without the lock. `mapping` may be NULL.
template <typename Fn>
Status IpcImports::add_mapping(IpcMapping *mapping, Fn map, void **out) {
  if (mapping == nullptr || !mappings_.push_back(mapping)) {
    core_.allocator.destroy(mapping);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an import.");
  }
  Status status;
  {
    Unlocked unlocked(mutex_);
    status = map();
  }
  if (status.ok()) {
    mapping->phase = IpcMapping::Phase::kMapped;
    status = add_block(*mapping, mapping->handle());
  }
  if (status.ok()) {
    *out = mapping->base() + mapping->handle().offset;
  } else {
    mapping->phase = IpcMapping::Phase::kMapping;
    undo(mapping);
    remove(mapping);
  }
  changed_.notify_all();
  return status;
}

// Imports a block whose memory is mapped.
Status IpcImports::add_to_mapping(IpcMapping &mapping, const IpcHandle &handle, uint64_t deadline, void **out) {
  const PeerState state = mapping.connection().state();
  if (state != PeerState::kAlive)
    return fail(state == PeerState::kRevoked ? GMM_ERROR_IPC_REVOKED : GMM_ERROR_IPC_PEER_GONE,
                "gmm_ipc_import: the exporter %s; close the imports that exist, and ask for a new handle.",
                state == PeerState::kRevoked ? "revoked the memory by a forced pause, and may resume it"
                                             : "ended, or its context did");
  // A block that is imported keeps its bytes. The exporter says whether another one lives: it may have freed it, and
  // have given its bytes to a further one. An own block is asked about each time, as a handle ends with its block.
  Status status;
  if (find_imported(mapping, handle.token) == nullptr || mapping.is_own()) {
    ++mapping.checks;
    {
      Unlocked unlocked(mutex_);
      status = mapping.check_block(handle, milliseconds_until(deadline), policy_);
    }
    --mapping.checks;
  }
  // From now on the mapping's connection keeps its bytes.
  ImportedBlock *const known = find_imported(mapping, handle.token);
  if (status.ok() && known != nullptr) ++known->imports;
  if (status.ok() && known == nullptr) status = add_block(mapping, handle);
  if (!status.ok()) {
    // Another thread may have closed the last import during the wait, and have left the mapping to this one.
    MessageGuard message;
    if (mapping.checks == 0 && blocks_of(mapping) == 0 && !close_mapping(&mapping).ok()) {
      Unlocked unlocked(mutex_);
      core_.log.write(LogLevel::kError, "cannot close an import: %s", last_message());
    }
    return status;
  }
  *out = mapping.base() + handle.offset;
  return Status();
}

// The first import of a block. Nothing has changed when it fails.
Status IpcImports::add_block(IpcMapping &mapping, const IpcHandle &handle) {
  ImportedBlock added = {};
  added.base = reinterpret_cast<uint64_t>(mapping.base()) + handle.block_offset;
  added.size = handle.block_size;
  added.mapping = &mapping;
  added.imports = 1;
  std::memcpy(added.token, handle.token, sizeof added.token);
  const ImportedBlock *after =
      std::lower_bound(blocks_.begin(), blocks_.end(), added.base,
                       [](const ImportedBlock &block, uint64_t base) { return block.base < base; });
  if (!reserve_tables() || !blocks_.insert(static_cast<uint64_t>(after - blocks_.begin()), added))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an import.");
  publish();
  return Status();
}

// --- Closing --------------------------------------------------------------------------------------------------------

Status IpcImports::close(void *memory, bool *found) {
  LockGuard guard(mutex_);
  Range range;
  *found = find(memory, &range);
  if (!*found) return Status();
  const auto address = reinterpret_cast<uint64_t>(memory);
  ImportedBlock *block = std::find_if(blocks_.begin(), blocks_.end(), [&](const ImportedBlock &each) {
    return address - each.base < each.size && each.mapping->phase == IpcMapping::Phase::kMapped;
  });
  if (block == blocks_.end())
    return fail(GMM_ERROR_UNBALANCED, "gmm_ipc_close(%p): no block around the address is imported.", memory);
  if (block->imports > 1) {
    --block->imports;
    return Status();
  }
  IpcMapping *mapping = block->mapping;
  if (blocks_of(*mapping) == 1 && mapping->checks == 0) return close_mapping(mapping);
  blocks_.erase(static_cast<uint64_t>(block - blocks_.begin()));
  publish();
  return Status();
}

// Unmaps a mapping, after the work that is queued on its device. A failure leaves the mapping and its block.
Status IpcImports::close_mapping(IpcMapping *mapping) {
  mapping->phase = IpcMapping::Phase::kUnmapping;
  Status status;
  {
    Unlocked unlocked(mutex_);
    if (!mapping->is_own()) status = core_.backend->synchronize(mapping->device());
    if (status.ok()) status = mapping->unmap();
  }
  if (status.ok())
    remove(mapping);
  else
    mapping->phase = IpcMapping::Phase::kMapped;
  changed_.notify_all();
  return status;
}

// Unmaps the memory of a failed import.
void IpcImports::undo(IpcMapping *mapping) {
  Unlocked unlocked(mutex_);
  MessageGuard message;
  if (!mapping->unmap().ok())
    core_.log.write(LogLevel::kError, "a failed import leaves memory mapped: %s", last_message());
}

// Removes a mapping that is not mapped any more, and its blocks.
void IpcImports::remove(IpcMapping *mapping) {
  blocks_.truncate(
      static_cast<uint64_t>(std::remove_if(blocks_.begin(), blocks_.end(),
                                           [&](const ImportedBlock &block) { return block.mapping == mapping; }) -
                            blocks_.begin()));
  mappings_.erase_unordered(
      static_cast<uint64_t>(std::find(mappings_.begin(), mappings_.end(), mapping) - mappings_.begin()));
  core_.allocator.destroy(mapping);
  publish();
}

void IpcImports::clear() {
  while (!mappings_.empty()) {
    IpcMapping *mapping = mappings_.back();
    if (!mapping->unmap().ok()) core_.log.write(LogLevel::kError, "cannot close an import: %s", last_message());
    remove(mapping);
  }
}

// --- The tables -----------------------------------------------------------------------------------------------------

// For all mappings and one more block: publish() cannot fail after it.
bool IpcImports::reserve_tables() {
  return ranges_.reserve(std::max(mappings_.size(), blocks_.size() + 1)) && mapping_table_.reserve(mappings_.size()) &&
         block_table_.reserve(blocks_.size() + 1);
}

// Gives readers of the table the scratch ranges.
void IpcImports::publish_ranges(RangeTable *table) {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range &a, const Range &b) { return a.base < b.base; });
  uint64_t count = 0;
  for (const Range &range : ranges_) {
    Range *last = count == 0 ? nullptr : &ranges_[count - 1];
    if (last != nullptr && range.base < last->base + last->size)
      last->size = std::max(last->size, range.base + range.size - last->base);
    else
      ranges_[count++] = range;
  }
  table->set(ranges_.data(), count);
  ranges_.clear();
}

void IpcImports::publish() {
  uint64_t bytes = 0;
  for (const IpcMapping *mapping : mappings_) {
    if (mapping->phase == IpcMapping::Phase::kMapping) continue;
    ranges_.push_back_reserved(range_of(*mapping));
    if (!mapping->is_own()) bytes += mapping->size();
  }
  publish_ranges(&mapping_table_);
  bytes_.store(bytes, std::memory_order_relaxed);
  for (const ImportedBlock &block : blocks_) ranges_.push_back_reserved(Range{block.base, block.size, 0});
  publish_ranges(&block_table_);
}

}  // namespace gmm
