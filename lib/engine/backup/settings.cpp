// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/os_memory.h"

namespace gmm {
namespace {

// 0 when it is not set.
Status bytes_of_environment(const char *name, uint64_t *out) {
  *out = 0;
  const char *text = std::getenv(name);
  if (text == nullptr || *text == '\0') return Status();
  char *end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0)
    return fail(GMM_ERROR_INVALID_VALUE, "%s=%.64s is no number of bytes; set it to a number from 1.", name, text);
  *out = value;
  return Status();
}

}  // namespace

Status BackupSettings::set(const gmm_backup_desc &desc) {
  if (desc.directory != nullptr && *desc.directory != '\0') {
    if (std::strlen(desc.directory) >= kMostPath)
      return fail(GMM_ERROR_INVALID_VALUE, "The folder for backups has a name of %zu bytes; %d are the most.",
                  std::strlen(desc.directory), static_cast<int>(kMostPath) - 1);
    struct stat state;
    int error = 0;
    if (stat(desc.directory, &state) != 0)
      error = errno;
    else if (!S_ISDIR(state.st_mode))
      error = ENOTDIR;
    else if (access(desc.directory, W_OK | X_OK) != 0)
      error = errno;
    char text[96];
    if (error != 0)
      return fail_native(GMM_ERROR_IO, error,
                         "The folder for backups, %.200s, cannot be used: %s; name one that exists and is writable.",
                         desc.directory, system_error_text(error, text, sizeof text));
  }
  LockGuard guard(mutex_);
  desc_ = desc;
  std::snprintf(directory_, sizeof directory_, "%s", desc.directory == nullptr ? "" : desc.directory);
  desc_.directory = nullptr;
  return Status();
}

Status BackupSettings::limits(uint64_t arena, uint64_t pageable, BackupLimits *out) {
  LockGuard guard(mutex_);
  BackupLimits limits;
  limits.arena = desc_.arena_limit;
  limits.pageable = desc_.pageable_limit;
  if (limits.arena == 0) GMM_TRY(bytes_of_environment("GMM_BACKUP_ARENA_LIMIT", &limits.arena));
  if (limits.pageable == 0) GMM_TRY(bytes_of_environment("GMM_BACKUP_PAGEABLE_LIMIT", &limits.pageable));
  if (limits.arena == 0 || limits.pageable == 0) {
    os::MemoryInfo info;
    GMM_TRY(os::memory_info(&info));
    // Page-locked memory cannot be swapped, so half of what is there stays. A sixteenth of the machine stays in any case.
    const uint64_t kept_back = info.total / 16;
    if (limits.arena == 0) limits.arena = arena + info.available / 2;
    if (limits.pageable == 0)
      limits.pageable = pageable + (info.available > kept_back ? info.available - kept_back : 0);
  }
  if ((desc_.flags & GMM_BACKUP_NO_ARENA) != 0) limits.arena = 0;
  if ((desc_.flags & GMM_BACKUP_NO_PAGEABLE) != 0) limits.pageable = 0;
  *out = limits;
  return Status();
}

void BackupSettings::directory(char *out) {
  LockGuard guard(mutex_);
  const char *name = directory_;
  if (*name == '\0') name = std::getenv("GMM_BACKUP_DIR");
  if (name == nullptr || *name == '\0') name = "/tmp";
  std::snprintf(out, kMostPath, "%s", name);
}

uint32_t BackupSettings::threads() {
  LockGuard guard(mutex_);
  return desc_.threads;
}

}  // namespace gmm
