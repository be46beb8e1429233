// SPDX-License-Identifier: Apache-2.0
#include "engine/backup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdlib>

namespace gmm {
namespace {

constexpr uint64_t kStaging = uint64_t{16} << 20;

Status io_error(const char *what, int error) {
  char text[96];
  return fail_native(GMM_ERROR_IO, error,
                     "%s of the backup file failed: %s; free space in GMM_BACKUP_DIR or set another folder.", what,
                     system_error_text(error, text, sizeof text));
}

// All of it, over short writes and signals.
Status transfer_file(int file, char *buffer, uint64_t size, uint64_t offset, bool out) {
  while (size != 0) {
    const ssize_t done = out ? pwrite(file, buffer, size, static_cast<off_t>(offset))
                             : pread(file, buffer, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return io_error(out ? "A write" : "A read", errno);
    if (done == 0) return fail(GMM_ERROR_IO, "The backup file ended %" PRIu64 " bytes early.", size);
    buffer += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<uint64_t>(done);
  }
  return Status();
}

// After a failure: whether no copy of the stream is open any more. One refusal of the driver must not leave copies to memory that goes.
bool has_settled(Backend &backend, Device device, gmm_stream stream) {
  constexpr uint32_t kTries = 3;
  MessageGuard keep;
  for (uint32_t i = 0; i < kTries; ++i)
    if (backend.stream_synchronize(device, stream).ok() || backend.synchronize(device).ok()) return true;
  return false;
}

}  // namespace

bool Backup::add(uintptr_t base, uint64_t size) {
  if (!pieces_.push_back(BackupPiece{base, size, size_})) return false;
  size_ += size;
  return true;
}

Status Backup::open_memory() {
  void *memory = mmap(nullptr, memory_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail_native(GMM_ERROR_OUT_OF_HOST_MEMORY, errno,
                       "%" PRIu64 " bytes of host memory for contents could not be had.", memory_size_);
  memory_ = static_cast<char *>(memory);
  madvise(memory, memory_size_, MADV_HUGEPAGE);  // a hint
  void *device_pointer = nullptr;
  MessageGuard keep;
  // Page-locked copies are faster; without the lock they are only slower.
  pinned_ = core_.backend->id() != GMM_BACKEND_HOST &&
            core_.backend->pin(memory, memory_size_, 0, device_, &device_pointer).ok();
  return Status();
}

Status Backup::open_file() {
  const char *folder = std::getenv("GMM_BACKUP_DIR");
  if (folder == nullptr || *folder == '\0') folder = "/tmp";
  file_ = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0) {
    const int error = errno;
    char text[96];
    return fail_native(GMM_ERROR_IO, error, "No backup file could be made in %.200s: %s; set GMM_BACKUP_DIR.", folder,
                       system_error_text(error, text, sizeof text));
  }
  // The room now, so that a full disk shows before anything is copied.
  const int error = posix_fallocate(file_, 0, static_cast<off_t>(size_));
  return error == 0 ? Status() : io_error("Reserving the room", error);
}

Status Backup::file_transfer(const BackupPiece &piece, bool out, gmm_stream stream) {
  Backend &backend = *core_.backend;
  for (uint64_t done = 0; done < piece.size; done += kStaging) {
    const uint64_t size = piece.size - done < kStaging ? piece.size - done : kStaging;
    void *device = reinterpret_cast<void *>(piece.base + done);
    if (!out) GMM_TRY(transfer_file(file_, memory_, size, piece.offset + done, false));
    GMM_TRY(backend.copy(device_, stream, out ? memory_ : device, out ? device : memory_, size));
    GMM_TRY(backend.stream_synchronize(device_, stream));
    if (out) GMM_TRY(transfer_file(file_, memory_, size, piece.offset + done, true));
  }
  return Status();
}

Status Backup::transfer(const BackupPiece &piece, bool out, gmm_stream stream) {
  if (file_ >= 0) return file_transfer(piece, out, stream);
  void *device = reinterpret_cast<void *>(piece.base);
  char *host = memory_ + piece.offset;
  return core_.backend->copy(device_, stream, out ? host : device, out ? device : host, piece.size);
}

Status Backup::save(gmm_contents contents) {
  if (pieces_.empty()) return Status();
  memory_size_ = contents == GMM_CONTENTS_FILE ? kStaging : size_;
  Status status = open_memory();
  if (status.ok() && contents == GMM_CONTENTS_FILE) status = open_file();
  gmm_stream stream = nullptr;
  if (status.ok()) status = core_.backend->stream_create(device_, &stream);
  if (status.ok()) {
    for (const BackupPiece &piece : pieces_) {
      status = transfer(piece, true, stream);
      if (!status.ok()) break;
    }
    if (status.ok()) status = core_.backend->stream_synchronize(device_, stream);
    MessageGuard keep;
    if (!status.ok() && !has_settled(*core_.backend, device_, stream)) {
      core_.log.write(LogLevel::kError, "Copies of a failed pause could not be waited for: %" PRIu64 " bytes are lost.",
                      memory_size_);
      memory_ = nullptr;
      pinned_ = false;
    }
    const Status ended = core_.backend->stream_destroy(stream);
    if (status.ok() && !ended.ok()) core_.log.write(LogLevel::kWarning, "A stream is left over: %s", last_message());
  }
  if (!status.ok()) {
    MessageGuard keep;
    drop();
  } else if (file_ >= 0 && !pinned_) {
    madvise(memory_, memory_size_, MADV_DONTNEED);  // a staging buffer needs no pages while the memory is away
  }
  return status;
}

Status Backup::restore(bool (*wanted)(const Core &core, const Heap &heap, const BackupPiece &piece), const Heap &heap) {
  if (pieces_.empty()) return Status();
  gmm_stream stream = nullptr;
  GMM_TRY(core_.backend->stream_create(device_, &stream));
  Status status;
  for (const BackupPiece &piece : pieces_) {
    if (!wanted(core_, heap, piece)) continue;
    status = transfer(piece, false, stream);
    if (!status.ok()) break;
  }
  if (status.ok()) status = core_.backend->stream_synchronize(device_, stream);
  MessageGuard keep;
  if (!status.ok() && !has_settled(*core_.backend, device_, stream))
    core_.log.write(LogLevel::kError, "Copies of a failed resume could not be waited for: %s", last_message());
  const Status ended = core_.backend->stream_destroy(stream);
  if (status.ok() && !ended.ok()) core_.log.write(LogLevel::kWarning, "A stream is left over: %s", last_message());
  return status;
}

void Backup::drop() {
  if (pinned_)
    core_.leftovers.unpin_pages(*core_.backend, memory_, memory_size_);
  else if (memory_ != nullptr)
    munmap(memory_, memory_size_);
  if (file_ >= 0) close(file_);
  memory_ = nullptr;
  memory_size_ = size_ = 0;
  pinned_ = false;
  file_ = -1;
  pieces_.clear();
}

}  // namespace gmm
