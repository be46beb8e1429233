// SPDX-License-Identifier: Apache-2.0
// What gmm_set_backup() and the environment say about where contents are kept.
#ifndef GMM_ENGINE_BACKUP_SETTINGS_H
#define GMM_ENGINE_BACKUP_SETTINGS_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

// As they hold for one save.
struct BackupLimits {
  uint64_t arena = 0;     // bytes of page-locked memory in all
  uint64_t pageable = 0;  // bytes of other memory in all
};

class BackupSettings {
 public:
  static constexpr uint64_t kMostPath = 3072;  // leaves place for a file's name below PATH_MAX

  // Checks all of it first: a failure changes nothing.
  Status set(const gmm_backup_desc &desc);
  // `arena` and `pageable`: bytes that these tiers have now, which count as spare. INVALID_VALUE: the environment is wrong.
  Status limits(uint64_t arena, uint64_t pageable, BackupLimits *out);
  // Writes the folder for files, kMostPath bytes at most.
  void directory(char *out);
  uint32_t threads();

 private:
  Mutex mutex_;
  gmm_backup_desc desc_ = {};
  char directory_[kMostPath] = {};  // empty: the environment's, or /tmp
};

}  // namespace gmm
#endif
