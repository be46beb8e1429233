// SPDX-License-Identifier: Apache-2.0
// The importer's side of sharing.
#include <unistd.h>

#include <cinttypes>
#include <cstring>

#include "engine/ipc/ipc.h"

namespace gmm {
namespace {

// The value of an import's range: kind in bits 0 to 2, the legacy route in bit 3, the device in bits 4 to 11, and the descriptors of the exporter, each
// one more than it is, in 26 bits each.
constexpr uint64_t kLegacyBit = 1u << 3;
constexpr unsigned kConnectionShift = 12, kProcessShift = 38;
constexpr uint64_t kFdMask = (1u << 26) - 1;

uint64_t fd_bits(const Peer &peer) {
  const auto bits = [](int32_t fd) { return static_cast<uint64_t>(fd + 1) & kFdMask; };
  return bits(peer.connection) << kConnectionShift | bits(peer.process) << kProcessShift;
}

bool same_export(const IpcHandle &a, const IpcHandle &b) {
  return a.exporter == b.exporter && a.allocation_size == b.allocation_size && a.generation == b.generation &&
         std::memcmp(a.token, b.token, sizeof a.token) == 0;
}

}  // namespace

PeerState Sharing::import_state(const Range &range) {
  const auto fd = [&](unsigned shift) { return static_cast<int32_t>(range.value >> shift & kFdMask) - 1; };
  const Peer peer{fd(kConnectionShift), fd(kProcessShift)};
  return peer.connection < 0 ? PeerState::kAlive : peer.state();
}

Status Sharing::check_import(const Range &range, const void *address, const char *operation) {
  const PeerState state = import_state(range);
  if (state == PeerState::kRevoked)
    return fail(GMM_ERROR_IPC_REVOKED,
                "%s(%p): the exporter took the memory back by a forced pause; close the import, and import a new "
                "handle once it is "
                "resumed.",
                operation, address);
  if (state == PeerState::kGone && (range.value & kLegacyBit) != 0)
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "%s(%p): the exporter ended, and DEVICE memory ends with it; close the import.", operation, address);
  return Status();
}

bool Sharing::publish() {
  ranges_.clear();
  if (!ranges_.reserve(imports_.size()) || !table_.reserve(imports_.size())) return false;
  uint64_t bytes = 0;
  for (const Import *import : imports_) {
    const uint64_t base = reinterpret_cast<uint64_t>(import->base);
    uint64_t at = ranges_.size();
    while (at > 0 && ranges_[at - 1].base > base) --at;
    if (!ranges_.insert(at, Range{base, import->size,
                                  static_cast<uint64_t>(import->handle.kind) |
                                      (import->handle.route == IpcRoute::kLegacy ? kLegacyBit : 0) |
                                      static_cast<uint64_t>(import->device.ordinal) << 4 |
                                      fd_bits(import->pieces[0].connection.peer())}))
      return false;
    bytes += import->size;
  }
  table_.set(ranges_.data(), ranges_.size());
  imported_bytes_.store(bytes, std::memory_order_relaxed);
  return true;
}

// Asks the exporter for a piece; *fd is -1 when only counted.
Status Sharing::connect(Import &import, uint32_t piece, IpcWant want, uint32_t timeout_ms, int32_t *fd,
                        IpcMeanwhile meanwhile) {
  IpcHandle handle = import.handle;
  handle.allocation |= static_cast<uint64_t>(piece) << kPieceShift;
  IpcImport granted;
  GMM_TRY(client_.connect(handle, want, timeout_ms, &granted, piece == 0, meanwhile));
  *fd = granted.fd;
  import.pieces[piece].connection = static_cast<IpcConnection &&>(granted.connection);
  import.pieces[piece].size = granted.allocation_size;
  return Status();
}

// VMM memory: one range of addresses, reserved while the exporter answers, backed piece by piece. What a failure leaves,
// unmap_import() takes away.
Status Sharing::map_vmm(Import &import, uint32_t timeout_ms) {
  Backend &backend = *core_.backend;
  struct Addresses {
    Backend &backend;
    Import &import;
    Status status;  // of the reservation: no answer comes before it
    static void reserve(void *self) {
      auto &[backend, import, status] = *static_cast<Addresses *>(self);
      void *base = nullptr;
      status = backend.reserve(import.handle.allocation_size, &base);
      if (!status.ok()) return;
      import.base = static_cast<char *>(base);
      import.size = import.handle.allocation_size;
    }
  } addresses{backend, import, Status()};
  const uint64_t size = import.handle.allocation_size;
  uint64_t done = 0;
  for (uint32_t i = 0; done < size; ++i) {
    if (i == kMaxPieces)
      return fail(GMM_ERROR_IPC_INVALID_HANDLE, "gmm_ipc_import: the memory has more parts than the handle says.");
    Piece &piece = import.pieces[i];
    int32_t fd = -1;
    GMM_TRY(connect(import, i, IpcWant::kDescriptor, timeout_ms, &fd,
                    i == 0 ? IpcMeanwhile{Addresses::reserve, &addresses} : IpcMeanwhile{}));
    Status status = addresses.status;
    if (status.ok() && (piece.size == 0 || piece.size % kExtentAlignment != 0 || piece.size > size - done))
      status = fail(GMM_ERROR_IPC_INVALID_HANDLE,
                    "gmm_ipc_import: the exporter's memory has another size than the handle says.");
    if (status.ok()) status = backend.import_fd(fd, piece.size, import.device, &piece.physical);
    ::close(fd);
    GMM_TRY(status);
    GMM_TRY(backend.map(import.base + done, piece.size, piece.physical));
    piece.mapped = true;
    done += piece.size;
  }
  return backend.set_access(import.base, size, import.device, 0);
}

Status Sharing::map_import(Import &import, uint32_t timeout_ms) {
  if (import.handle.route == IpcRoute::kLegacy) {
    int32_t fd = -1;
    GMM_TRY(connect(import, 0, IpcWant::kCount, timeout_ms, &fd));
    void *base = nullptr;
    GMM_TRY(core_.backend->legacy_import(import.handle.legacy, import.device, &base));
    import.base = static_cast<char *>(base);
    import.size = import.handle.allocation_size;
    return Status();
  }
  if (import.handle.kind == Kind::kVmm) return map_vmm(import, timeout_ms);
  int32_t fd = -1;
  GMM_TRY(connect(import, 0, IpcWant::kDescriptor, timeout_ms, &fd));
  Status status = core_.backend->import_host(fd, import.handle.allocation_size, import.device,
                                             import.handle.kind == Kind::kHost, &import.allocation);
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  import.base = static_cast<char *>(import.allocation.base);
  import.size = import.handle.allocation_size;
  return Status();
}

// Takes away what there is; when the driver refuses, the rest stays for another try.
Status Sharing::unmap_import(Import &import) {
  Backend &backend = *core_.backend;
  if (import.base == nullptr) {
    // A descriptor that was taken before there were addresses for it.
    Piece &first = import.pieces[0];
    if (import.from_fd && first.physical.value != 0) GMM_TRY(backend.release(first.physical));
    first.physical = PhysicalHandle{};
    return Status();
  }
  if (import.external) {
    GMM_TRY(backend.external_close(import.allocation));
  } else if (import.handle.route == IpcRoute::kLegacy) {
    GMM_TRY(backend.legacy_close(import.base));
  } else if (import.handle.kind == Kind::kVmm) {
    char *at = import.base;
    for (Piece &piece : import.pieces) {
      if (piece.mapped) GMM_TRY(backend.unmap(at, piece.size));
      piece.mapped = false;
      if (piece.physical.value != 0) GMM_TRY(backend.release(piece.physical));
      piece.physical = PhysicalHandle{};
      at += piece.size;
    }
    GMM_TRY(backend.unreserve(import.base, import.size));
  } else {
    GMM_TRY(backend.deallocate(import.allocation));
  }
  for (Piece &piece : import.pieces)
    if (piece.connection.open()) client_.release(static_cast<IpcConnection &&>(piece.connection));
  import.base = nullptr;
  return Status();
}

// A handle of this very context: the original memory.
Status Sharing::find_own(const IpcHandle &handle, void **out) {
  LockGuard guard(mutex_);
  if (Export *found = export_of(handle.allocation); found != nullptr && ipc_token_equal(found->token, handle.token)) {
    Export &entry = *found;
    uintptr_t base = 0;
    const uint64_t shift = handle.allocation_size - entry.size;
    Block block;
    void *address = reinterpret_cast<void *>(entry.base + handle.offset - shift);
    if (piece_of(entry, entry.pieces - 1, &base) != nullptr && handle.allocation_size >= entry.size &&
        handle.offset >= shift && find_block(core_, address, &block) && block.base == entry.block) {
      LockGuard heap_guard(block.heap->mutex);
      if (block.heap->exported_as(reinterpret_cast<void *>(entry.block), entry.id)) {
        ++entry.self_imports;
        *out = address;
        return Status();
      }
    }
  }
  return fail(GMM_ERROR_IPC_PEER_GONE, "gmm_ipc_import: this process exported the memory and has freed it since.");
}

Status Sharing::close_own(const void *memory) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_close", &block));
  LockGuard guard(mutex_);
  LockGuard heap_guard(block.heap->mutex);
  for (Export &entry : exports_)
    if (entry.block == block.base && entry.self_imports != 0 &&
        block.heap->exported_as(reinterpret_cast<void *>(entry.block), entry.id)) {
      --entry.self_imports;
      return Status();
    }
  return fail(GMM_ERROR_UNBALANCED, "gmm_ipc_close(%p): the memory is this process's own and was not imported.",
              memory);
}

Status Sharing::import_block(const gmm_ipc_handle &bytes, Device device, uint32_t timeout_ms, void **out) {
  IpcHandle handle;
  GMM_TRY(ipc_handle_decode(bytes, &handle));
  if (handle.event)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_import: the handle is of an event; pass it to gmm_ipc_event_import().");
  if (handle.allocation >> kPieceShift != 0)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE, "gmm_ipc_import: the handle names no allocation.");
  bool own = false;
  {
    LockGuard guard(mutex_);
    settled_ = true;
    own = serving_ && handle.exporter == endpoint_;
  }
  if (own) return find_own(handle, out);
  LockGuard guard(import_mutex_);
  for (Import *known : imports_) {
    if (known->from_fd || !same_export(known->handle, handle) || !(known->device == device)) continue;
    const PeerState state = known->pieces[0].connection.state();
    if (state == PeerState::kRevoked)
      return fail(GMM_ERROR_IPC_REVOKED,
                  "gmm_ipc_import: the exporter took the memory back by a forced pause; close the imports that are "
                  "left, and ask "
                  "for a new handle once it is resumed.");
    if (state == PeerState::kGone)
      return fail(
          GMM_ERROR_IPC_PEER_GONE,
          "gmm_ipc_import: the exporting process ended or took the memory back; close the imports that are left.");
    ++known->references;
    *out = known->base + handle.offset;
    return Status();
  }
  Import *import = nullptr;
  GMM_TRY(make_import(&import));
  import->handle = handle;
  import->device = device;
  return enter_import(import, map_import(*import, timeout_ms), handle.offset, out);
}

// With import_mutex_ held, until enter_import() is done.
Status Sharing::make_import(Import **out) {
  Import *import = core_.allocator.create<Import>();
  if (import == nullptr || !imports_.reserve(imports_.size() + 1) || !ranges_.reserve(imports_.size() + 1) ||
      !table_.reserve(imports_.size() + 1)) {
    core_.allocator.destroy(import);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an import.");
  }
  *out = import;
  return Status();
}

Status Sharing::enter_import(Import *import, Status status, uint64_t offset, void **out) {
  if (!status.ok()) {
    MessageGuard keep;
    if (!unmap_import(*import).ok())
      core_.log.write(LogLevel::kError, "A failed import leaves something mapped: %s", last_message());
    core_.allocator.destroy(import);
    return status;
  }
  imports_.push_back_reserved(import);
  (void)publish();  // make_import() reserved
  *out = import->base + offset;
  return Status();
}

Status Sharing::close(void *memory) {
  {
    LockGuard guard(import_mutex_);
    for (uint64_t i = 0; i < imports_.size(); ++i) {
      Import *import = imports_[i];
      if (static_cast<uint64_t>(static_cast<char *>(memory) - import->base) >= import->size) continue;
      if (import->references > 1) {
        --import->references;
        return Status();
      }
      GMM_TRY(core_.backend->synchronize(import->device));
      GMM_TRY(unmap_import(*import));
      imports_.erase_unordered(i);
      core_.allocator.destroy(import);
      (void)publish();
      return Status();
    }
  }
  return close_own(memory);
}

void Sharing::clear() {
  broker_.stop();
  {
    LockGuard guard(mutex_);
    serving_ = false;
  }
  end_events();
  LockGuard guard(import_mutex_);
  while (!imports_.empty()) {
    Import *import = imports_.pop_back();
    if (!unmap_import(*import).ok())
      core_.log.write(LogLevel::kError, "An import could not be closed: %s", last_message());
    core_.allocator.destroy(import);
  }
  client_.close_idle();
  (void)publish();
}

}  // namespace gmm
