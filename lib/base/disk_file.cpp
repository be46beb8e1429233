// SPDX-License-Identifier: Apache-2.0
#include "base/disk_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/process.h"

namespace gmm::os {
namespace {

void name_file(const char *folder, const char *prefix, char path[kMaxFilePath]) {
  uint64_t start = 0, random = 0;
  if (process_start_time(getpid(), &start) != 0) start = 0;
  MessageGuard message_guard;
  random_bytes(&random, sizeof random).ignore();  // 0 is safe: O_EXCL refuses a name that exists
  std::snprintf(path, kMaxFilePath, "%s/%s%d-%" PRIu64 "-%016" PRIx64, folder, prefix, static_cast<int>(getpid()),
                start, random);
}

int transfer(int fd, uint64_t offset, char *data, uint64_t size, bool is_writing) {
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
    if (done == 0) return kFileTruncated;
    data += done;
    offset += static_cast<uint64_t>(done);
    size -= static_cast<uint64_t>(done);
  }
  return 0;
}

}  // namespace

int check_folder(const char *path) {
  struct stat state;
  if (stat(path, &state) != 0) return errno;
  if (!S_ISDIR(state.st_mode)) return ENOTDIR;
  return access(path, W_OK | X_OK) == 0 ? 0 : errno;
}

const char *temporary_folder() { return "/tmp"; }

int make_unnamed_file(const char *folder, const char *prefix, int32_t *out) {
  char path[kMaxFilePath];
  const int error = make_named_file(folder, prefix, path, out);
  if (error == 0) unlink(path);
  return error;
}

// Past the system's page cache, where the file system allows that.
int make_named_file(const char *folder, const char *prefix, char path[kMaxFilePath], int32_t *out) {
  if (std::strlen(folder) + 128 > kMaxFilePath) return ENAMETOOLONG;
  name_file(folder, prefix, path);
  *out = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  if (*out < 0 && errno == EINVAL) {
    unlink(path);  // some systems create the file before they refuse O_DIRECT
    *out = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  }
  return *out < 0 ? errno : 0;
}

// A process leaves its file only when it dies between open() and unlink().
void delete_orphaned_files(const char *folder, const char *prefix) {
  DIR *listing = opendir(folder);
  if (listing == nullptr) return;
  const size_t length = std::strlen(prefix);
  while (const dirent *entry = readdir(listing)) {
    int pid = 0;
    uint64_t start = 0, now = 0;
    if (std::strncmp(entry->d_name, prefix, length) != 0) continue;
    if (std::sscanf(entry->d_name + length, "%d-%" SCNu64 "-", &pid, &start) != 2 || pid <= 0) continue;
    const int error = process_start_time(pid, &now);
    if (error == ESRCH || (error == 0 && now != start && start != 0)) unlinkat(dirfd(listing), entry->d_name, 0);
  }
  closedir(listing);
}

int delete_file(const char *path) { return unlink(path) == 0 ? 0 : errno; }

int publish_file(int32_t file, const char *temporary, const char *path, int error) {
  if (error == 0 && fchmod(file, 0644) != 0) error = errno;
  close(file);
  if (error == 0 && rename(temporary, path) != 0) error = errno;
  if (error != 0) unlink(temporary);
  return error;
}

int reserve_blocks(int32_t file, uint64_t end, uint64_t size) {
  // A write past this limit would also raise SIGXFSZ, which ends the program.
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      (size > limit.rlim_cur || end > limit.rlim_cur - size))
    return EFBIG;
  const auto begin = static_cast<off_t>(end), bytes = static_cast<off_t>(size);
  int error = 0;
  while ((error = fallocate(file, 0, begin, bytes) == 0 ? 0 : errno) == EINTR) {
  }
  if (error == EOPNOTSUPP || error == ENOSYS) {
    // Such a file system reserves no blocks. It can tell whether enough are free now.
    struct statvfs state = {};
    error = fstatvfs(file, &state) == 0 ? 0 : errno;
    if (error == 0 && state.f_blocks != 0 && state.f_frsize != 0 && size / state.f_frsize >= state.f_bavail)
      error = ENOSPC;
    if (error == 0 && ftruncate(file, begin + bytes) != 0) error = errno;
  }
  // A failed fallocate() may have taken blocks. The caller wants the first error.
  if (error != 0 && ftruncate(file, begin) != 0) return error;
  return error;
}

int sync_file(int32_t file) {
  int error = 0;
  while ((error = fdatasync(file) == 0 ? 0 : errno) == EINTR) {
  }
  return error;
}

int write_file(int32_t file, uint64_t offset, const char *data, uint64_t size) {
  return transfer(file, offset, const_cast<char *>(data), size, true);
}

int read_file(int32_t file, uint64_t offset, char *data, uint64_t size) {
  return transfer(file, offset, data, size, false);
}

}  // namespace gmm::os
