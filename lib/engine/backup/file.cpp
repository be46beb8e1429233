// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/process.h"

namespace gmm {
namespace {

constexpr char kPrefix[] = "gmm-backup-";

Status folder_error(const char *directory, int error) {
  char text[96];
  return fail_native(GMM_ERROR_IO, error,
                     "Backup file in %.200s: %s; free space there, or name another folder by gmm_backup_configure() or "
                     "GMM_BACKUP_DIR.",
                     directory, system_error_text(error, text, sizeof text));
}

Status no_memory_for_file() {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a backup file; free host memory.");
}

// The name tells the process and its start time. Other processes delete the file only when that process has ended.
void name_file(const char *directory, char *path, size_t size) {
  uint64_t start = 0, random = 0;
  if (process_start_time(getpid(), &start) != 0) start = 0;
  MessageGuard message_guard;
  random_bytes(&random, sizeof random).ignore();  // 0 is safe: O_EXCL refuses a name that exists
  std::snprintf(path, size, "%s/%s%d-%" PRIu64 "-%016" PRIx64, directory, kPrefix, static_cast<int>(getpid()), start,
                random);
}

// Returns -1 with errno. Tries both ways with O_DIRECT first: some file systems allow it for named files only.
int open_unnamed(const char *directory) {
  char path[BackupSettings::kMaxDirectory + 128];
  name_file(directory, path, sizeof path);
  for (const int direct : {O_DIRECT, 0}) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600);
    if (fd >= 0 || errno == ENOENT || errno == EACCES || errno == ENOSPC || errno == EMFILE) return fd;
    fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | direct, 0600);
    const int error = errno;
    unlink(path);  // some systems create the file before they refuse O_DIRECT
    if (fd >= 0 || error != EINVAL) {
      errno = error;
      return fd;
    }
  }
  return -1;
}

// Returns -1 with errno.
int open_named(const char *directory, char *path, size_t size) {
  name_file(directory, path, size);
  for (const int direct : {O_DIRECT, 0}) {
    const int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | direct, 0600);
    if (fd >= 0 || errno != EINVAL) return fd;
    unlink(path);  // some systems create the file before they refuse O_DIRECT
  }
  errno = EINVAL;
  return -1;
}

// Returns 0 or an errno.
int allocate_blocks(int fd, uint64_t offset, uint64_t size) {
  int error = 0;
  while ((error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) == 0 ? 0 : errno) == EINTR) {
  }
  if (error == 0) return 0;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    // Such a file system reserves no blocks. It can tell whether enough are free now.
    struct statvfs state = {};
    error = fstatvfs(fd, &state) == 0 ? 0 : errno;
    if (error == 0 && state.f_blocks != 0 && state.f_frsize != 0 && size / state.f_frsize >= state.f_bavail)
      error = ENOSPC;
    if (error == 0 && ftruncate(fd, static_cast<off_t>(offset + size)) != 0) error = errno;
  }
  // A failed fallocate() may have taken blocks. The caller wants the first error.
  if (error != 0 && ftruncate(fd, static_cast<off_t>(offset)) != 0) return error;
  return error;
}

// Deletes files of processes that have ended. A process leaves its file only when it dies between open() and unlink().
void delete_orphans(const char *directory) {
  DIR *folder = opendir(directory);
  if (folder == nullptr) return;
  while (const dirent *entry = readdir(folder)) {
    int pid = 0;
    uint64_t start = 0, now = 0;
    if (std::strncmp(entry->d_name, kPrefix, sizeof kPrefix - 1) != 0) continue;
    if (std::sscanf(entry->d_name + sizeof kPrefix - 1, "%d-%" SCNu64 "-", &pid, &start) != 2 || pid <= 0) continue;
    const int error = process_start_time(pid, &now);
    if (error == ESRCH || (error == 0 && now != start && start != 0)) unlinkat(dirfd(folder), entry->d_name, 0);
  }
  closedir(folder);
}

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
  if (!has_deleted_orphans_) delete_orphans(directory);
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
  char path[BackupSettings::kMaxDirectory + 128];
  const int fd = is_named ? open_named(directory, path, sizeof path) : open_unnamed(directory);
  if (fd < 0) return folder_error(directory, errno);
  const uint64_t path_size = is_named ? std::strlen(path) + 1 : 0;
  if (is_named) files_[index].path = static_cast<char *>(core_.allocator.allocate(path_size, 1));
  files_[index].ranges = core_.allocator.create<RangeAllocator>(core_.allocator);
  if (files_[index].ranges == nullptr || (is_named && files_[index].path == nullptr)) {
    core_.allocator.destroy(files_[index].ranges);
    core_.allocator.deallocate(files_[index].path, path_size);
    files_[index].ranges = nullptr;
    files_[index].path = nullptr;
    if (is_named) unlink(path);
    close(fd);
    return no_memory_for_file();
  }
  if (is_named) std::memcpy(files_[index].path, path, path_size);
  files_[index].end = 0;
  files_[index].descriptor.store(fd, std::memory_order_relaxed);
  current_ = static_cast<int32_t>(index);
  return Status();
}

Status BackupFile::extend_locked(File &file, uint64_t bytes) {
  // A write past this limit would also raise SIGXFSZ, which ends the program.
  rlimit limit = {};
  int error = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
                      (bytes > limit.rlim_cur || file.end > limit.rlim_cur - bytes)
                  ? EFBIG
                  : 0;
  if (error == 0) error = allocate_blocks(file.descriptor.load(std::memory_order_relaxed), file.end, bytes);
  if (error != 0) return prefix(folder_error(directory_, error), "Reserving %" PRIu64 " bytes: ", bytes);
  if (!file.ranges->add(file.end, bytes)) return no_memory_for_file();
  file.end += bytes;
  return Status();
}

Status BackupFile::reserve(const char *directory, uint64_t bytes) {
  LockGuard guard(mutex_);
  GMM_TRY(open_current_locked(directory));
  File &file = files_[current_];
  Status status;
  if (file.ranges->free_bytes() < bytes) status = extend_locked(file, bytes - file.ranges->free_bytes());
  if (!status.ok() && file.ranges->allocated_bytes() == 0) close_locked(file);
  return status;
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
  File &file = files_[current_];
  Status status;
  if (file.ranges->free_bytes() < bytes) status = extend_locked(file, bytes - file.ranges->free_bytes());
  if (!status.ok() && file.ranges->allocated_bytes() == 0) close_locked(file);
  return status;
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
    unlink(file.path);
    core_.allocator.deallocate(file.path, std::strlen(file.path) + 1);
    file.path = nullptr;
  }
  close(file.descriptor.exchange(-1, std::memory_order_relaxed));
  core_.allocator.destroy(file.ranges);
  file.ranges = nullptr;
  if (current_ >= 0 && &files_[current_] == &file) current_ = -1;
}

Status BackupFile::sync(uint64_t files) {
  check_may_wait("a file");
  for (uint32_t i = 0; i < kMaxFiles; ++i) {
    if ((files >> i & 1) == 0) continue;
    const int fd = files_[i].descriptor.load(std::memory_order_relaxed);
    int error = 0;
    while ((error = fdatasync(fd) == 0 ? 0 : errno) == EINTR) {
    }
    if (error != 0) return error_status(error, true);
  }
  return Status();
}

int BackupFile::transfer(uint64_t location, char *data, uint64_t size, bool is_writing) {
  check_may_wait("a file");
  const int fd = file_of(location).descriptor.load(std::memory_order_relaxed);
  uint64_t offset = location & kOffsetMask;
  bool was_refused = false;
  while (size != 0) {
    const ssize_t done = is_writing ? pwrite(fd, data, size, static_cast<off_t>(offset))
                                    : pread(fd, data, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL && !was_refused) {
      // Some file systems accept O_DIRECT at open() and refuse the transfer. Another thread may have cleared the flag.
      was_refused = true;
      const int flags = fcntl(fd, F_GETFL);
      if (flags < 0 || ((flags & O_DIRECT) != 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0)) return EINVAL;
      continue;
    }
    if (done < 0) return errno;
    if (done == 0) return kTruncated;
    data += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<uint64_t>(done);
  }
  return 0;
}

Status BackupFile::error_status(int error, bool is_writing) {
  if (error == kTruncated)
    return fail(GMM_ERROR_IO,
                "The backup file is shorter than what was written to it: another program cut it; the contents are "
                "lost.");
  LockGuard guard(mutex_);
  char text[96];
  return fail_native(GMM_ERROR_IO, error, "%s the backup file in %.200s: %s; %s.", is_writing ? "Writing" : "Reading",
                     directory_, system_error_text(error, text, sizeof text),
                     is_writing ? "free space there, or name another folder by gmm_backup_configure() or GMM_BACKUP_DIR"
                                : "see the system's log; a retry may work");
}

uint64_t BackupFile::bytes() {
  LockGuard guard(mutex_);
  uint64_t bytes = 0;
  for (File &file : files_)
    if (file.ranges != nullptr) bytes += file.ranges->allocated_bytes();
  return bytes;
}

void BackupFile::clear() {
  LockGuard guard(mutex_);
  for (File &file : files_)
    if (file.ranges != nullptr) close_locked(file);
}

}  // namespace gmm
