// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/tiers.h"

#include <algorithm>
#include <cinttypes>

#include "engine/backup/checksum.h"

namespace gmm {

bool Chunk::matches_checksum(const char *bytes) const {
  return !has_checksum || chunk_checksum(bytes, size) == checksum;
}

uint64_t KeptContents::first_chunk_behind(uintptr_t address) const {
  const Chunk *behind = std::upper_bound(chunks.begin(), chunks.end(), address,
                                         [](uintptr_t at, const Chunk &chunk) { return at < chunk.end(); });
  return static_cast<uint64_t>(behind - chunks.begin());
}

Status corrupt_chunk(const Chunk &chunk) {
  return name_chunk(fail(GMM_ERROR_CORRUPT, "the kept bytes differ from their checksum; do not trust them."), chunk);
}

Status name_chunk(Status status, const Chunk &chunk) {
  return prefix(status, "Contents of %#" PRIxPTR " to %#" PRIxPTR ": ", chunk.base, chunk.end());
}

bool BackupTiers::is_direct(Tier tier) const {
  return tier == Tier::kArena || (tier == Tier::kPageable && core.backend->id() == GMM_BACKEND_HOST);
}

CopyThreads &BackupTiers::threads_of(Tier tier) { return tier == Tier::kFile ? file_threads : threads; }

char *BackupTiers::address(const Chunk &chunk) const {
  return chunk.tier == Tier::kArena ? arena.address(chunk.location) : pageable.address(chunk.location);
}

bool BackupTiers::allocate_in_host_memory(const BackupLimits &limits, bool may_use_arena, const Chunk *previous,
                                          Chunk *chunk) {
  const uint64_t size = size_in_tier(chunk->size);
  const auto hint = [&](Tier tier) {
    return previous != nullptr && previous->tier == tier ? previous->location + size_in_tier(previous->size) : 0;
  };
  chunk->tier = Tier::kArena;
  if (may_use_arena && arena.allocate(size, hint(chunk->tier), limits.arena, &chunk->location)) return true;
  chunk->tier = Tier::kPageable;
  return pageable.allocate(size, hint(chunk->tier), limits.pageable, &chunk->location);
}

void BackupTiers::free(const Chunk &chunk) {
  const uint64_t size = size_in_tier(chunk.size);
  if (chunk.tier == Tier::kArena) arena.free(chunk.location, size);
  if (chunk.tier == Tier::kPageable) pageable.free(chunk.location, size);
  if (chunk.tier == Tier::kFile) file.free(chunk.location, size);
}

void BackupTiers::count_kept(const Chunk &chunk) {
  kept_bytes[static_cast<uint32_t>(chunk.tier)].fetch_add(chunk.size, std::memory_order_relaxed);
}

void BackupTiers::drop_kept(const Chunk &chunk) {
  kept_bytes[static_cast<uint32_t>(chunk.tier)].fetch_sub(chunk.size, std::memory_order_relaxed);
  free(chunk);
}

void BackupTiers::abandon_host_memory() {
  arena.abandon();
  pageable.abandon();
}

}  // namespace gmm
