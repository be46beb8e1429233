// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/settings.h"

#include <cstdio>
#include <cstring>

#include "base/disk_file.h"
#include "base/environment.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

// 0 when the variable is not set.
Status bytes_of_environment(Variable variable, uint64_t *out) {
  *out = 0;
  if (environment_number(variable, out) != Reading::kBad) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "%s=%.64s is not a number of bytes; unset it, or set it to 1 or more.",
              environment_row(variable).name, environment_text(variable));
}

}  // namespace

Status BackupSettings::set(const gmm_backup_desc &desc) {
  if (desc.directory != nullptr && *desc.directory != '\0') {
    if (std::strlen(desc.directory) >= kMaxDirectory)
      return fail(GMM_ERROR_INVALID_VALUE,
                  "gmm_backup_configure(): the directory has a name of %zu bytes; use one of at most %d bytes.",
                  std::strlen(desc.directory), static_cast<int>(kMaxDirectory) - 1);
    const int error = os::check_folder(desc.directory);
    if (error != 0)
      return fail_native(GMM_ERROR_IO, error,
                         "gmm_backup_configure(): the directory %.200s cannot be used: %s; name one that exists and is "
                         "writable.",
                         desc.directory, ErrorText(error).text);
  }
  LockGuard guard(mutex_);
  desc_ = desc;
  std::snprintf(directory_, sizeof directory_, "%s", desc.directory == nullptr ? "" : desc.directory);
  desc_.directory = nullptr;
  return Status();
}

Status BackupSettings::limits(uint64_t arena_bytes, uint64_t pageable_bytes, BackupLimits *out) {
  LockGuard guard(mutex_);
  BackupLimits limits;
  limits.arena = desc_.arena_limit;
  limits.pageable = desc_.pageable_limit;
  if (limits.arena == 0) GMM_TRY(bytes_of_environment(Variable::kBackupArenaLimit, &limits.arena));
  if (limits.pageable == 0) GMM_TRY(bytes_of_environment(Variable::kBackupPageableLimit, &limits.pageable));
  if (limits.arena == 0 || limits.pageable == 0) {
    os::MemoryInfo info;
    GMM_TRY(os::memory_info(&info));
    // The system cannot swap page-locked memory, so the arena takes at most half of what is available. Pageable memory
    // leaves 1/16 of the machine's memory to others.
    const uint64_t reserve = info.total / 16;
    if (limits.arena == 0) limits.arena = arena_bytes + info.available / 2;
    if (limits.pageable == 0)
      limits.pageable = pageable_bytes + (info.available > reserve ? info.available - reserve : 0);
  }
  if ((desc_.flags & GMM_BACKUP_NO_ARENA) != 0) limits.arena = 0;
  if ((desc_.flags & GMM_BACKUP_NO_PAGEABLE) != 0) limits.pageable = 0;
  *out = limits;
  return Status();
}

void BackupSettings::directory(char *out) {
  LockGuard guard(mutex_);
  const char *name = directory_;
  if (*name == '\0') name = environment_text(Variable::kBackupDir);
  if (name == nullptr) name = os::temporary_folder();
  std::snprintf(out, kMaxDirectory, "%s", name);
}

bool BackupSettings::names_files() {
  LockGuard guard(mutex_);
  return (desc_.flags & GMM_BACKUP_NAMED_FILES) != 0;
}

uint32_t BackupSettings::threads() {
  LockGuard guard(mutex_);
  return desc_.threads;
}

}  // namespace gmm
