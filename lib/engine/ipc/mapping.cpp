// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/mapping.h"

#include <cstring>

#include "base/os_memory.h"
#include "base/process.h"
#include "engine/ipc/descriptor.h"
#include "engine/ipc/machine.h"

namespace gmm {

bool IpcMapping::is_of(const IpcHandle &handle, Device device) const {
  // A mapping of a descriptor has an empty handle, and no decoded handle has the process number 0.
  return device_ == device && handle_.exporter == handle.exporter &&
         handle_.allocation_size == handle.allocation_size && handle_.generation == handle.generation &&
         std::memcmp(handle_.token, handle.token, kIpcExtentsTokenSize) == 0;
}

Status IpcMapping::map_handle(uint64_t timeout_ms) {
  kind_ = handle_.kind;
  const uint64_t size = handle_.allocation_size;
  int32_t fd = -1;
  if (handle_.route == IpcRoute::kLegacy) {
    GMM_TRY(connect(0, IpcWant::kCount, timeout_ms, &fd));
    void *base = nullptr;
    GMM_TRY(backend_.legacy_import(handle_.legacy, device_, &base));
    form_ = Form::kLegacy;
    base_ = static_cast<char *>(base);
    size_ = size;
    return Status();
  }
  if (handle_.route == IpcRoute::kFabric && handle_.machine != ipc_machine()) return map_fabric();
  if (kind_ == Kind::kVmm) return map_pieces(timeout_ms);
  GMM_TRY(connect(0, IpcWant::kDescriptor, timeout_ms, &fd));
  return map_file(fd, size);
}

Status IpcMapping::map_descriptor(int32_t fd, gmm_fd_type type, uint64_t size) {
  if (type == GMM_FD_OPAQUE) {
    kind_ = Kind::kVmm;
    return map_opaque(fd, size);
  }
  if (type == GMM_FD_FILE) {
    kind_ = Kind::kHost;
    GMM_TRY(seal_descriptor(fd));
    int32_t own_fd = -1;
    GMM_TRY(os::duplicate(fd, &own_fd));
    return map_file(own_fd, size);
  }
  kind_ = Kind::kDevice;
  GMM_TRY(backend_.external_import(fd, type, size, device_, &allocation_));
  form_ = Form::kExternal;
  base_ = static_cast<char *>(allocation_.base);
  size_ = size;
  return Status();
}

// Requests one piece from the exporter. *fd is -1 when the importer is only counted.
Status IpcMapping::connect(uint32_t piece, IpcWant want, uint64_t timeout_ms, int32_t *fd, IpcMeanwhile meanwhile) {
  IpcHandle handle = handle_;
  handle.allocation = ipc_piece_id(handle.allocation, piece);
  IpcImport granted;
  if (piece == 0) {
    GMM_TRY(client_.connect(handle, want, timeout_ms, &granted, true, meanwhile));
    connection_ = static_cast<IpcConnection &&>(granted.connection);
  } else {
    GMM_TRY(client_.next_piece(handle, timeout_ms, &connection_, &granted));
  }
  *fd = granted.fd;
  pieces_[piece].size = granted.allocation_size;
  return Status();
}

Status IpcMapping::reserve(uint64_t size) {
  void *base = nullptr;
  GMM_TRY(backend_.reserve(size, &base));
  base_ = static_cast<char *>(base);
  size_ = size;
  return Status();
}

// Reserves the addresses while the exporter prepares its first answer.
Status IpcMapping::map_pieces(uint64_t timeout_ms) {
  struct Reservation {
    IpcMapping &mapping;
    Status status;
    static void run(void *self) {
      auto &[mapping, status] = *static_cast<Reservation *>(self);
      status = mapping.reserve(mapping.handle_.allocation_size);
    }
  } reservation{*this, Status()};
  form_ = Form::kPieces;
  const uint64_t size = handle_.allocation_size, deadline = deadline_after(timeout_ms);
  uint64_t mapped = 0;
  for (uint32_t i = 0; mapped < size; ++i) {
    if (i == kIpcMaxPieces)
      return fail(GMM_ERROR_IPC_INVALID_HANDLE, "gmm_ipc_import: the memory has more pieces than its size allows.");
    Piece &piece = pieces_[i];
    int32_t fd = -1;
    GMM_TRY(connect(i, IpcWant::kDescriptor, milliseconds_until(deadline), &fd,
                    i == 0 ? IpcMeanwhile{Reservation::run, &reservation} : IpcMeanwhile{}));
    Status status = reservation.status;
    if (status.ok() && (piece.size == 0 || piece.size % kExtentAlignment != 0 || piece.size > size - mapped))
      status = fail(GMM_ERROR_IPC_INVALID_HANDLE,
                    "gmm_ipc_import: the exporter's memory has another size than the handle says.");
    if (status.ok()) status = backend_.import_fd(fd, piece.size, device_, &piece.physical);
    os::close_file(fd).ignore();
    GMM_TRY(status);
    GMM_TRY(backend_.map(base_ + mapped, piece.size, piece.physical));
    piece.is_mapped = true;
    mapped += piece.size;
  }
  return backend_.set_access(base_, size, device_, 0);
}

Status IpcMapping::map_opaque(int32_t fd, uint64_t size) {
  form_ = Form::kPieces;
  Piece &piece = pieces_[0];
  piece.size = size;
  GMM_TRY(backend_.import_fd(fd, size, device_, &piece.physical));
  return map_one(size);
}

// The exporter's size is the handle's: the driver maps whole allocations only.
Status IpcMapping::map_fabric() {
  form_ = Form::kPieces;
  is_fabric_ = true;
  const uint64_t size = handle_.allocation_size;
  if (size % kExtentAlignment != 0)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_import: the handle's memory is of another machine, but not of whole 2 MiB.");
  pieces_[0].size = size;
  GMM_TRY(backend_.import_fabric(handle_.legacy, size, device_, &pieces_[0].physical));
  return map_one(size);
}

// Maps the first piece, which is all of the memory.
Status IpcMapping::map_one(uint64_t size) {
  Piece &piece = pieces_[0];
  GMM_TRY(reserve(size));
  GMM_TRY(backend_.map(base_, size, piece.physical));
  piece.is_mapped = true;
  return backend_.set_access(base_, size, device_, 0);
}

// Owns the descriptor, also when it fails.
Status IpcMapping::map_file(int32_t own_fd, uint64_t size) {
  const Status status = backend_.import_host(own_fd, size, device_, kind_ == Kind::kHost, &allocation_);
  if (!status.ok()) {
    os::close_file(own_fd).ignore();
    return status;
  }
  form_ = Form::kFile;
  base_ = static_cast<char *>(allocation_.base);
  size_ = size;
  return Status();
}

Status IpcMapping::unmap() {
  switch (form_) {
    case Form::kNone:
      return Status();
    case Form::kPieces:
      GMM_TRY(unmap_pieces());
      break;
    case Form::kFile:
      GMM_TRY(backend_.deallocate(allocation_));
      break;
    case Form::kLegacy:
      GMM_TRY(backend_.legacy_close(base_));
      break;
    case Form::kExternal:
      GMM_TRY(backend_.external_close(allocation_));
      break;
  }
  form_ = Form::kNone;
  if (base_ == nullptr) return Status();  // it never had addresses; the destructor closes the connection
  if (connection_.open()) client_.release(static_cast<IpcConnection &&>(connection_));
  base_ = nullptr;
  return Status();
}

// A piece of a descriptor may have physical memory before there are addresses for it.
Status IpcMapping::unmap_pieces() {
  uint64_t at = 0;
  for (Piece &piece : pieces_) {
    if (piece.is_mapped) GMM_TRY(backend_.unmap(base_ + at, piece.size));
    piece.is_mapped = false;
    if (piece.physical.value != 0) GMM_TRY(backend_.release(piece.physical));
    piece.physical = PhysicalHandle{};
    at += piece.size;
  }
  return base_ == nullptr ? Status() : backend_.unreserve(base_, size_);
}

}  // namespace gmm
