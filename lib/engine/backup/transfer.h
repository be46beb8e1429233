// SPDX-License-Identifier: Apache-2.0
// One save or one restore: the copies between a device and the tiers.
//
// A transfer plans its copies chunk by chunk, then runs them through a window of kWindow in-flight batches on one
// stream of the device. A batch is a run of chunks of one extent and one tier. The device copies a batch, with an event
// behind it. A task on the copy threads does the rest: it moves bytes between a staging slot and the tier, and computes
// or compares checksums. Batches finish in their order. The caller of a save unmaps one extent while the next are
// copied, the caller of a restore maps one extent while those before it are filled.
//
//   save:     find zeros -> allocate in tiers -> device copies -> task -> sync file -> commit
//   restore:  task -> device copies or fills
//
// A failed transfer first waits for copy threads and device. When the driver refuses even that wait, host memory that
// the device may still copy to is abandoned: nobody uses or frees it again, and the log says so.
#ifndef GMM_ENGINE_BACKUP_TRANSFER_H
#define GMM_ENGINE_BACKUP_TRANSFER_H

#include "engine/backup/tiers.h"

namespace gmm {

// One extent of a transfer.
struct BackupPart {
  const ByteRange *ranges = nullptr;  // live contents, by address, which do not overlap; NULL only when there are none
  uint64_t range_count = 0;
  KeptContents *kept = nullptr;  // a restore takes NULL when there are no ranges
  // Where the block of each range begins, for a file of its own. NULL: all ranges share files.
  const uintptr_t *blocks = nullptr;
};

// How often a save copies the contents.
enum class SavePass {
  kOnly,   // once: a chunk that is kept is not copied again
  kAhead,  // before the program has stopped writing: every chunk gets room, also one that is zero now
  kAgain   // after kAhead: each kept chunk is copied again to its place, so it needs no more room
};

// The caller's steps of a transfer. The transfer calls them on the thread that started it. Each may be NULL.
struct BackupSteps {
  void *user = nullptr;
  // A restore calls it once for each part, in the order of the parts, before the first copy to the part and before its
  // after(); also for a part without ranges. A failure ends the restore, which then calls it for no later part.
  // A save does not call it.
  Status (*before)(void *user, uint64_t part) = nullptr;
  // Called once for each part, in the order of the parts, when all contents of the part are copied; also for a part
  // without ranges. A failure ends the transfer.
  Status (*after)(void *user, uint64_t part) = nullptr;
  // Called once before the first copy, then at least every 64 MiB. `bytes` counts what the transfer is done with so
  // far: of a save, all bytes of the ranges; of a restore, those that are kept; both with bytes that need no copy. A
  // failure (CANCELLED) ends the transfer.
  Status (*progress)(void *user, uint64_t bytes) = nullptr;
  SavePass pass = SavePass::kOnly;  // of a save
};

// Transfers may run at the same time, each with buffers and extents of its own.
//
// Copies the ranges of the parts out and commits the new chunks to KeptContents. Chunks of an earlier save that lie in
// a range are not copied again, but by SavePass::kAgain. `contents`: GMM_CONTENTS_HOST or GMM_CONTENTS_FILE; `flags`:
// GMM_TAG_*. After a failure no copy is in flight and KeptContents is as before, but the bytes of a failed kAgain are
// undefined.
Status save_contents(BackupTiers &tiers, TransferBuffers &buffers, Device device, gmm_contents contents, uint32_t flags,
                     const BackupPart *parts, uint64_t count, const BackupSteps &steps);
// Copies kept chunks of the ranges in, and keeps them. Bytes that no chunk covers stay as they are. After a failure no
// copy is in flight. CORRUPT and IO name the range of the chunk.
Status restore_contents(BackupTiers &tiers, TransferBuffers &buffers, Device device, const BackupPart *parts,
                        uint64_t count, const BackupSteps &steps);

}  // namespace gmm
#endif
