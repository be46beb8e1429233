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

Status folder_failed(const char *directory, int error) {
  char text[96];
  return fail_native(GMM_ERROR_IO, error,
                     "A file for contents in %.200s: %s; free space there, or name another folder by gmm_set_backup() "
                     "or GMM_BACKUP_DIR.",
                     directory, system_error_text(error, text, sizeof text));
}

// With the name of a live process, so that others leave it alone until it is gone.
void name_file(const char *directory, char *path, size_t size) {
  uint64_t start = 0, random = 0;
  if (process_start_time(getpid(), &start) != 0) start = 0;
  MessageGuard keep;
  random_bytes(&random, sizeof random).ignore();  // 0 will do: O_EXCL refuses what is there
  std::snprintf(path, size, "%s/%s%d-%" PRIu64 "-%016" PRIx64, directory, kPrefix, static_cast<int>(getpid()), start,
                random);
}

// -1 with errno. Past the system's cache where either way gets there: some file systems make only named files so.
int open_unnamed(const char *directory) {
  char path[BackupSettings::kMostPath + 128];
  name_file(directory, path, sizeof path);
  for (const int direct : {O_DIRECT, 0}) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600);
    if (fd >= 0 || errno == ENOENT || errno == EACCES || errno == ENOSPC || errno == EMFILE) return fd;
    fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | direct, 0600);
    const int error = errno;
    unlink(path);  // some systems make the file before they refuse the flag
    if (fd >= 0 || error != EINVAL) {
      errno = error;
      return fd;
    }
  }
  return -1;
}

// 0 or an errno.
int allocate_blocks(int fd, uint64_t offset, uint64_t size) {
  int error = 0;
  while ((error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) == 0 ? 0 : errno) == EINTR) {
  }
  if (error == 0) return 0;
  if (error == EOPNOTSUPP || error == ENOSYS) {
    // Such a file system cannot promise the room; it can say whether it is there.
    struct statvfs state = {};
    error = fstatvfs(fd, &state) == 0 ? 0 : errno;
    if (error == 0 && state.f_blocks != 0 && state.f_frsize != 0 && size / state.f_frsize >= state.f_bavail)
      error = ENOSPC;
    if (error == 0 && ftruncate(fd, static_cast<off_t>(offset + size)) != 0) error = errno;
  }
  // What it took before it failed goes back. The first error is what matters.
  if (error != 0 && ftruncate(fd, static_cast<off_t>(offset)) != 0) return error;
  return error;
}

}  // namespace

void reap_backup_files(const char *directory) {
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

// With the lock held.
Status BackupFile::open_current(const char *directory) {
  if (current_ >= 0 && std::strcmp(directory, directory_) == 0) return Status();
  if (std::strcmp(directory, directory_) != 0) reaped_ = false;
  if (current_ >= 0 && files_[current_].room->taken_bytes() == 0) close_file(files_[current_]);
  current_ = -1;
  std::snprintf(directory_, sizeof directory_, "%s", directory);
  if (!reaped_) reap_backup_files(directory);
  reaped_ = true;
  uint32_t index = 0;
  while (index < kMostFiles && files_[index].room != nullptr) ++index;
  if (index == kMostFiles)
    return fail(GMM_ERROR_IO, "Contents are kept in %u folders already; resume some of them.", kMostFiles);
  const int fd = open_unnamed(directory);
  if (fd < 0) return folder_failed(directory, errno);
  files_[index].room = core_.allocator.create<BackupRoom>(core_.allocator);
  if (files_[index].room == nullptr) {
    close(fd);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a backup.");
  }
  files_[index].end = 0;
  files_[index].descriptor.store(fd, std::memory_order_relaxed);
  current_ = static_cast<int32_t>(index);
  return Status();
}

// With the lock held.
Status BackupFile::extend(File &file, uint64_t bytes) {
  // Past this limit the kernel would also send SIGXFSZ, which ends a program.
  rlimit limit = {};
  int error = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
                      (bytes > limit.rlim_cur || file.end > limit.rlim_cur - bytes)
                  ? EFBIG
                  : 0;
  if (error == 0) error = allocate_blocks(file.descriptor.load(std::memory_order_relaxed), file.end, bytes);
  if (error != 0) return prefix(folder_failed(directory_, error), "Reserving %" PRIu64 " bytes: ", bytes);
  if (!file.room->add(file.end, bytes)) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a backup.");
  file.end += bytes;
  return Status();
}

Status BackupFile::reserve(const char *directory, uint64_t bytes) {
  LockGuard guard(mutex_);
  GMM_TRY(open_current(directory));
  File &file = files_[current_];
  Status status;
  if (file.room->free_bytes() < bytes) status = extend(file, bytes - file.room->free_bytes());
  if (!status.ok() && file.room->taken_bytes() == 0) close_file(file);
  return status;
}

Status BackupFile::take(uint64_t size, uint64_t hint, uint64_t *where) {
  LockGuard guard(mutex_);
  File &file = files_[current_];
  constexpr uint64_t kOffset = (uint64_t{1} << kFileShift) - 1;
  uint64_t offset = 0;
  if (!file.room->take(size, hint & kOffset, &offset)) {
    GMM_TRY(extend(file, size));
    if (!file.room->take(size, file.end - size, &offset))
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a backup.");
  }
  *where = static_cast<uint64_t>(current_) << kFileShift | offset;
  return Status();
}

void BackupFile::give(uint64_t where, uint64_t size) {
  LockGuard guard(mutex_);
  File &file = file_of(where);
  file.room->give(where & ((uint64_t{1} << kFileShift) - 1), size);
  const bool is_current = current_ >= 0 && &file == &files_[current_];
  if (!is_current && file.room->taken_bytes() == 0) close_file(file);
}

void BackupFile::close_unused() {
  LockGuard guard(mutex_);
  if (current_ >= 0 && files_[current_].room->taken_bytes() == 0) close_file(files_[current_]);
}

// With the lock held.
void BackupFile::close_file(File &file) {
  close(file.descriptor.exchange(-1, std::memory_order_relaxed));
  core_.allocator.destroy(file.room);
  file.room = nullptr;
  if (current_ >= 0 && &files_[current_] == &file) current_ = -1;
}

Status BackupFile::sync() {
  int fd = -1;
  {
    LockGuard guard(mutex_);
    if (current_ < 0) return Status();
    fd = files_[current_].descriptor.load(std::memory_order_relaxed);
  }
  int error = 0;
  while ((error = fdatasync(fd) == 0 ? 0 : errno) == EINTR) {
  }
  return error == 0 ? Status() : failed(error, true);
}

int BackupFile::transfer(uint64_t where, char *data, uint64_t size, bool writing) {
  const int fd = file_of(where).descriptor.load(std::memory_order_relaxed);
  uint64_t offset = where & ((uint64_t{1} << kFileShift) - 1);
  bool refused = false;
  while (size != 0) {
    const ssize_t done = writing ? pwrite(fd, data, size, static_cast<off_t>(offset))
                                 : pread(fd, data, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL && !refused) {
      // Some file systems take O_DIRECT and refuse the transfer. Another thread may have turned it off just now.
      refused = true;
      const int flags = fcntl(fd, F_GETFL);
      if (flags < 0 || ((flags & O_DIRECT) != 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0)) return EINVAL;
      continue;
    }
    if (done < 0) return errno;
    if (done == 0) return kEnded;
    data += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<uint64_t>(done);
  }
  return 0;
}

Status BackupFile::failed(int error, bool writing) {
  if (error == kEnded)
    return fail(GMM_ERROR_IO,
                "The file for contents is shorter than it was; somebody cut it, and what it kept is lost.");
  LockGuard guard(mutex_);
  char text[96];
  return fail_native(GMM_ERROR_IO, error, "%s the file for contents in %.200s: %s; %s.",
                     writing ? "Writing" : "Reading", directory_, system_error_text(error, text, sizeof text),
                     writing ? "free space there, or name another folder by gmm_set_backup() or GMM_BACKUP_DIR"
                             : "see the system's log; a retry may work");
}

uint64_t BackupFile::bytes() {
  LockGuard guard(mutex_);
  uint64_t bytes = 0;
  for (File &file : files_)
    if (file.room != nullptr) bytes += file.room->taken_bytes();
  return bytes;
}

void BackupFile::clear() {
  LockGuard guard(mutex_);
  for (File &file : files_)
    if (file.room != nullptr) close_file(file);
}

}  // namespace gmm
