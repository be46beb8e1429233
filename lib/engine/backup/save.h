// SPDX-License-Identifier: Apache-2.0
// One save: what is zero or kept already is found, the rest gets room and is copied out.
#ifndef GMM_ENGINE_BACKUP_SAVE_H
#define GMM_ENGINE_BACKUP_SAVE_H

#include "engine/backup/transfer.h"

namespace gmm {

class BackupSave : private BackupTransfer {
 public:
  BackupSave(BackupTiers &tiers, Device device, const BackupSteps &steps, gmm_contents contents, uint32_t flags)
      : BackupTransfer(tiers, device, steps, true), contents_(contents), flags_(flags) {}
  Status run(const BackupPart *parts, uint64_t count);

 private:
  Status copy_all();
  Status start_flight(uint64_t index);
  // Which new chunks are all zero. What cannot be asked counts as not zero.
  void find_zeros();
  void find_zeros_of(uint64_t *next);
  Status place_all(uint64_t from);
  Status place(BackupMove &move, bool arena, const Chunk *before);
  void keep(const BackupPart *parts, uint64_t count);
  void give_up(bool settled);

  const gmm_contents contents_;
  const uint32_t flags_;
  BackupLimits limits_;
  bool arena_refused_ = false, in_file_ = false;
};

}  // namespace gmm
#endif
