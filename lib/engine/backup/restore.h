// SPDX-License-Identifier: Apache-2.0
// One restore: kept chunks are read, checked and copied in.
#ifndef GMM_ENGINE_BACKUP_RESTORE_H
#define GMM_ENGINE_BACKUP_RESTORE_H

#include "engine/backup/transfer.h"

namespace gmm {

class BackupRestore : private BackupTransfer {
 public:
  BackupRestore(BackupTiers &tiers, Device device, const BackupSteps &steps)
      : BackupTransfer(tiers, device, steps, false) {}
  Status run(const BackupPart *parts, uint64_t count);

 private:
  Status copy_all();
};

}  // namespace gmm
#endif
