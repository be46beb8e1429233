// SPDX-License-Identifier: Apache-2.0
// The settings of gmm_backup_configure(), with the environment variables and defaults that stand in for what it
// leaves out.
#ifndef GMM_ENGINE_BACKUP_SETTINGS_H
#define GMM_ENGINE_BACKUP_SETTINGS_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

// The limits of one save.
struct BackupLimits {
  uint64_t arena = 0;     // bytes of page-locked memory in all
  uint64_t pageable = 0;  // bytes of other host memory in all
};

// Thread-safe.
class BackupSettings {
 public:
  static constexpr uint64_t kMaxDirectory = 3072;  // bytes of the name; leaves place for a file's name below PATH_MAX

  // Checks all fields before it changes any.
  Status set(const gmm_backup_desc &desc);
  // A limit that is not set: what the tier has now (`arena_bytes`, `pageable_bytes`) plus what the host can spare.
  // INVALID_VALUE: an environment variable is not a number of bytes.
  Status limits(uint64_t arena_bytes, uint64_t pageable_bytes, BackupLimits *out);
  // Writes the name of the folder for backup files, at most kMaxDirectory bytes.
  void directory(char *out);
  // GMM_BACKUP_NAMED_FILES.
  bool names_files();
  // As CopyThreads::set_count() takes it.
  uint32_t threads();

 private:
  Mutex mutex_{LockRank::kBackupSettings};
  gmm_backup_desc desc_ = {};
  char directory_[kMaxDirectory] = {};  // empty: GMM_BACKUP_DIR, or /tmp
};

}  // namespace gmm
#endif
