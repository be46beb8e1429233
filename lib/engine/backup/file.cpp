// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/file.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/disk_file.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr char kPrefix[] = "gmm-backup-";

Status folder_error(const char *directory, int error) {
  return fail_native(GMM_ERROR_IO, error,
                     "Backup file in %.200s: %s; free space there, or name another folder by gmm_backup_configure() or "
                     "GMM_BACKUP_DIR.",
                     directory, ErrorText(error).text);
}

Status no_memory_for_file() {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a backup file; free host memory.");
}

static_assert(BackupSettings::kMaxDirectory + 128 <= os::kMaxFilePath);
static_assert(BackupFile::kTruncated == os::kFileTruncated);

}  // namespace

bool BackupFile::is_named_here(const File &file) const {
  const uint64_t length = std::strlen(directory_);
  return file.path != nullptr && std::strncmp(file.path, directory_, length) == 0 && file.path[length] == '/' &&
         std::strchr(file.path + length + 1, '/') == nullptr;
}

// The caller opens a file in the folder next. Files of another folder that keep nothing are closed.
void BackupFile::change_folder_locked(const char *directory) {
  if (current_ >= 0 && files_[current_].path == nullptr && files_[current_].ranges->allocated_bytes() == 0)
    close_locked(files_[current_]);
  current_ = -1;
  if (std::strcmp(directory, directory_) != 0) {
    has_deleted_orphans_ = false;
    for (File &file : files_)
      if (file.ranges != nullptr && file.ranges->allocated_bytes() == 0) close_locked(file);
  }
  std::snprintf(directory_, sizeof directory_, "%s", directory);
  if (!has_deleted_orphans_) os::delete_orphaned_files(directory, kPrefix);
  has_deleted_orphans_ = true;
}

Status BackupFile::open_current_locked(const char *directory) {
  if (current_ >= 0 && files_[current_].path == nullptr && std::strcmp(directory, directory_) == 0) return Status();
  change_folder_locked(directory);
  return open_file_locked(directory, false);
}

Status BackupFile::open_file_locked(const char *directory, bool is_named) {
  uint32_t index = 0;
  while (index < kMaxFiles && files_[index].ranges != nullptr) ++index;
  if (index == kMaxFiles)
    return fail(GMM_ERROR_IO, "Backup files of %u folders keep contents, which is the most; resume some of them first.",
                kMaxFiles);
  char path[os::kMaxFilePath];
  int32_t fd = -1;
  const int error =
      is_named ? os::make_named_file(directory, kPrefix, path, &fd) : os::make_unnamed_file(directory, kPrefix, &fd);
  if (error != 0) return folder_error(directory, error);
  const uint64_t path_size = is_named ? std::strlen(path) + 1 : 0;
  if (is_named) files_[index].path = static_cast<char *>(core_.allocator.allocate(path_size, 1));
  files_[index].ranges = core_.allocator.create<RangeAllocator>(core_.allocator);
  if (files_[index].ranges == nullptr || (is_named && files_[index].path == nullptr)) {
    core_.allocator.destroy(files_[index].ranges);
    core_.allocator.deallocate(files_[index].path, path_size);
    files_[index].ranges = nullptr;
    files_[index].path = nullptr;
    if (is_named) os::delete_file(path);
    os::close_file(fd).ignore();
    return no_memory_for_file();
  }
  if (is_named) std::memcpy(files_[index].path, path, path_size);
  files_[index].end = 0;
  files_[index].descriptor.store(fd, std::memory_order_relaxed);
  current_ = static_cast<int32_t>(index);
  return Status();
}

Status BackupFile::extend_locked(File &file, uint64_t bytes) {
  const int error = os::reserve_blocks(file.descriptor.load(std::memory_order_relaxed), file.end, bytes);
  if (error != 0) return prefix(folder_error(directory_, error), "Reserving %" PRIu64 " bytes: ", bytes);
  if (!file.ranges->add(file.end, bytes)) return no_memory_for_file();
  file.end += bytes;
  return Status();
}

Status BackupFile::reserve_in_current_locked(uint64_t bytes) {
  File &file = files_[current_];
  Status status;
  if (file.ranges->free_bytes() < bytes) status = extend_locked(file, bytes - file.ranges->free_bytes());
  if (!status.ok() && file.ranges->allocated_bytes() == 0) close_locked(file);
  return status;
}

Status BackupFile::reserve(const char *directory, uint64_t bytes) {
  LockGuard guard(mutex_);
  GMM_TRY(open_current_locked(directory));
  return reserve_in_current_locked(bytes);
}

Status BackupFile::reserve_named(const char *directory, uint64_t bytes) {
  LockGuard guard(mutex_);
  change_folder_locked(directory);
  uint32_t named = 0, places = 0;
  int32_t shared = -1;
  for (uint32_t i = 0; i < kMaxFiles && current_ < 0; ++i) {
    File &file = files_[i];
    if (file.ranges == nullptr) {
      ++places;
    } else if (is_named_here(file)) {
      ++named;
      if (file.ranges->allocated_bytes() == 0) current_ = static_cast<int32_t>(i);
      if (shared < 0 || file.ranges->allocated_bytes() < files_[shared].ranges->allocated_bytes())
        shared = static_cast<int32_t>(i);
    }
  }
  if (current_ < 0 && (named >= kMaxNamed || places == 0)) current_ = shared;
  if (current_ < 0) GMM_TRY(open_file_locked(directory, true));
  return reserve_in_current_locked(bytes);
}

Status BackupFile::allocate(uint64_t size, uint64_t hint, uint64_t *location) {
  LockGuard guard(mutex_);
  File &file = files_[current_];
  uint64_t offset = 0;
  if (!file.ranges->allocate(size, hint & kOffsetMask, &offset)) {
    GMM_TRY(extend_locked(file, size));
    if (!file.ranges->allocate(size, file.end - size, &offset)) return no_memory_for_file();
  }
  *location = static_cast<uint64_t>(current_) << kFileShift | offset;
  return Status();
}

void BackupFile::free(uint64_t location, uint64_t size) {
  LockGuard guard(mutex_);
  File &file = file_of(location);
  file.ranges->free(location & kOffsetMask, size);
  const bool stays = (current_ >= 0 && &file == &files_[current_]) || is_named_here(file);
  if (!stays && file.ranges->allocated_bytes() == 0) close_locked(file);
}

void BackupFile::close_unused() {
  LockGuard placing_guard(placing);
  LockGuard guard(mutex_);
  for (File &file : files_)
    if (file.ranges != nullptr && file.ranges->allocated_bytes() == 0) close_locked(file);
}

void BackupFile::close_locked(File &file) {
  if (file.path != nullptr) {
    os::delete_file(file.path);
    core_.allocator.deallocate(file.path, std::strlen(file.path) + 1);
    file.path = nullptr;
  }
  os::close_file(file.descriptor.exchange(-1, std::memory_order_relaxed)).ignore();
  core_.allocator.destroy(file.ranges);
  file.ranges = nullptr;
  if (current_ >= 0 && &files_[current_] == &file) current_ = -1;
}

Status BackupFile::sync(uint64_t files) {
  check_may_wait("a file");
  for (uint32_t i = 0; i < kMaxFiles; ++i) {
    if ((files >> i & 1) == 0) continue;
    const int error = os::sync_file(files_[i].descriptor.load(std::memory_order_relaxed));
    if (error != 0) return error_status(error, true);
  }
  return Status();
}

int BackupFile::transfer(uint64_t location, char *data, uint64_t size, bool is_writing) {
  check_may_wait("a file");
  const int32_t file = file_of(location).descriptor.load(std::memory_order_relaxed);
  const uint64_t offset = location & kOffsetMask;
  return is_writing ? os::write_file(file, offset, data, size) : os::read_file(file, offset, data, size);
}

Status BackupFile::error_status(int error, bool is_writing) {
  if (error == kTruncated)
    return fail(GMM_ERROR_IO,
                "The backup file is shorter than what was written to it: another program cut it; the contents are "
                "lost.");
  LockGuard guard(mutex_);
  return fail_native(GMM_ERROR_IO, error, "%s the backup file in %.200s: %s; %s.", is_writing ? "Writing" : "Reading",
                     directory_, ErrorText(error).text,
                     is_writing ? "free space there, or name another folder by gmm_backup_configure() or GMM_BACKUP_DIR"
                                : "see the system's log; a retry may work");
}

void BackupFile::clear() {
  LockGuard guard(mutex_);
  for (File &file : files_)
    if (file.ranges != nullptr) close_locked(file);
}

}  // namespace gmm
