// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/tiers.h"

#include "engine/backup/plan.h"

namespace gmm {

bool BackupTiers::is_direct(Tier tier) const {
  return tier == Tier::kArena || (tier == Tier::kPageable && core.backend->id() == GMM_BACKEND_HOST);
}

BackupThreads &BackupTiers::threads_of(Tier tier) { return tier == Tier::kFile ? requests : threads; }

char *BackupTiers::address(const Chunk &chunk) const {
  return chunk.tier == Tier::kArena ? arena.address(chunk.where) : pageable.address(chunk.where);
}

void BackupTiers::give(const Chunk &chunk, bool counted) {
  if (counted) held[static_cast<uint32_t>(chunk.tier)].fetch_sub(chunk.size, std::memory_order_relaxed);
  const uint64_t room = backup_room_of(chunk.size);
  switch (chunk.tier) {
    case Tier::kZero:
      break;
    case Tier::kArena:
      arena.give(chunk.where, room);
      break;
    case Tier::kPageable:
      pageable.give(chunk.where, room);
      break;
    case Tier::kFile:
      file.give(chunk.where, room);
      break;
  }
}

void BackupTiers::count(const Chunk &chunk) {
  held[static_cast<uint32_t>(chunk.tier)].fetch_add(chunk.size, std::memory_order_relaxed);
}

}  // namespace gmm
