// SPDX-License-Identifier: Apache-2.0
// What is to be copied, cut into chunks.
#ifndef GMM_ENGINE_BACKUP_PLAN_H
#define GMM_ENGINE_BACKUP_PLAN_H

#include "engine/backup/store.h"

namespace gmm {

// The most bytes of a chunk: what is looked at for zeros, gets a checksum, goes through one slot of the staging ring and is one request to
// a file. At 55 GB/s it takes 75 us, long against the start of a copy (3 us) and a request to a disk, and 16 slots
// of it are little page-locked memory.
inline constexpr uint64_t kBackupChunk = uint64_t{4} << 20;

// What a chunk takes in a tier.
constexpr uint64_t backup_room_of(uint64_t size) { return (size + 4095) & ~uint64_t{4095}; }

// One chunk, or a part of it, on its way.
struct BackupMove {
  Chunk chunk;
  uintptr_t base = 0;  // of what is copied: save: the chunk
  uint64_t size = 0;
  bool kept = false;    // save: by an earlier one
  bool placed = false;  // save: it has room in its tier
};

struct BackupPlan {
  explicit BackupPlan(const HostAllocator &allocator) : moves(allocator), part_ends(allocator) {}
  Vector<BackupMove> moves;    // by part, then by address
  Vector<uint64_t> part_ends;  // for each part, the index of the move behind its last
};

// Cuts the live ranges at the borders of kept chunks that lie wholly in one of them; the rest becomes new chunks.
Status plan_save(const BackupPart *parts, uint64_t count, BackupPlan *plan);
// The kept chunks of the ranges, as far as they lie in them.
Status plan_restore(const BackupPart *parts, uint64_t count, BackupPlan *plan);

// The first chunk that ends behind the address.
uint64_t first_chunk_behind(const KeptContents &kept, uintptr_t address);

}  // namespace gmm
#endif
