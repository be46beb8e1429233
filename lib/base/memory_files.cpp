// SPDX-License-Identifier: Apache-2.0
#include "base/memory_files.h"

#include "base/os_memory.h"

namespace gmm {

MemoryFiles::~MemoryFiles() {
  if (shared_fd_ >= 0) os::close_file(shared_fd_).ignore();
}

bool MemoryFiles::open_shared() {
  MessageGuard message_guard;
  if (shared_fd_ < 0 && !os::memory_file_sparse("gmm-memory", kSharedSize, &shared_fd_).ok()) shared_fd_ = -1;
  return shared_fd_ >= 0;
}

Status MemoryFiles::take(const char *name, bool exportable, MemoryPiece *piece) {
  if (!exportable) {
    LockGuard guard(mutex_);
    piece->is_ordinary = own_files_ < kOwnFiles;
    own_files_ += piece->is_ordinary ? 1 : 0;
  }
  if (exportable || piece->is_ordinary) {
    const Status status = os::memory_file_create(name, piece->size, &piece->fd);
    if (status.ok() || exportable) return status;
    // The process may be out of descriptors, which the shared file does not need.
    end(*piece).ignore();
    piece->is_ordinary = false;
  }
  {
    LockGuard guard(mutex_);
    if (open_shared()) {
      if (shared_live_ == 0) shared_end_ = 0;
      if (piece->size > kSharedSize - shared_end_)
        return fail(GMM_ERROR_OUT_OF_MEMORY,
                    "The memory file of the process has no more offsets; free all of its memory.");
      GMM_TRY(os::memory_file_commit(shared_fd_, shared_end_, piece->size));
      piece->fd = shared_fd_;
      piece->is_shared_file = true;
      piece->offset = shared_end_;
      shared_end_ += piece->size;
      ++shared_live_;
      return Status();
    }
  }
  return os::memory_file_create(name, piece->size, &piece->fd);
}

Status MemoryFiles::create(const char *name, uint64_t size, bool exportable, MemoryPiece **out) {
  MemoryPiece piece;
  piece.size = size;
  Status status = take(name, exportable, &piece);
  if (status.ok()) status = keep(piece, out);
  if (status.ok()) return status;
  keep_first(&status, [&] { return end(piece); });
  return status;
}

Status MemoryFiles::keep(const MemoryPiece &piece, MemoryPiece **out) {
  *out = allocator_.create<MemoryPiece>(piece);
  if (*out != nullptr) return Status();
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for the bookkeeping of memory; free memory.");
}

Status MemoryFiles::release(MemoryPiece *piece) {
  GMM_TRY(end(*piece));
  allocator_.destroy(piece);
  return Status();
}

Status MemoryFiles::end(const MemoryPiece &piece) {
  if (!piece.is_shared_file) {
    if (piece.fd >= 0) GMM_TRY(os::close_file(piece.fd));
  } else {
    GMM_TRY(os::memory_file_drop(piece.fd, piece.offset, piece.size));
  }
  LockGuard guard(mutex_);
  if (piece.is_ordinary) --own_files_;
  if (piece.is_shared_file) --shared_live_;
  return Status();
}

}  // namespace gmm
