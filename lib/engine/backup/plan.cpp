// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/plan.h"

namespace gmm {
namespace {

Status no_memory() {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan the copies of contents; free memory.");
}

bool add_new(BackupPlan *plan, uintptr_t begin, uintptr_t end) {
  while (begin < end) {
    BackupMove move;
    move.base = begin;
    move.size = end - begin < kBackupChunk ? end - begin : kBackupChunk;
    move.chunk.base = move.base;
    move.chunk.size = move.size;
    if (!plan->moves.push_back(move)) return false;
    begin += move.size;
  }
  return true;
}

}  // namespace

uint64_t first_chunk_behind(const KeptContents &kept, uintptr_t address) {
  uint64_t low = 0, high = kept.chunks.size();
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (kept.chunks[middle].base + kept.chunks[middle].size > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

Status plan_save(const BackupPart *parts, uint64_t count, BackupPlan *plan) {
  for (uint64_t p = 0; p < count; ++p) {
    const KeptContents &kept = *parts[p].kept;
    for (uint64_t r = 0; r < parts[p].range_count; ++r) {
      const ByteRange range = parts[p].ranges[r];
      uintptr_t at = range.base;
      for (uint64_t i = first_chunk_behind(kept, range.base); i < kept.chunks.size(); ++i) {
        const Chunk &chunk = kept.chunks[i];
        if (chunk.base >= range.end()) break;
        if (chunk.base < range.base || chunk.base + chunk.size > range.end()) continue;
        BackupMove move;
        move.chunk = chunk;
        move.base = chunk.base;
        move.size = chunk.size;
        move.kept = true;
        if (!add_new(plan, at, chunk.base) || !plan->moves.push_back(move)) return no_memory();
        at = chunk.base + chunk.size;
      }
      if (!add_new(plan, at, range.end())) return no_memory();
    }
    if (!plan->part_ends.push_back(plan->moves.size())) return no_memory();
  }
  return Status();
}

Status plan_restore(const BackupPart *parts, uint64_t count, BackupPlan *plan) {
  for (uint64_t p = 0; p < count; ++p) {
    for (uint64_t r = 0; r < parts[p].range_count; ++r) {
      const KeptContents &kept = *parts[p].kept;  // NULL only where nothing is wanted
      const ByteRange range = parts[p].ranges[r];
      for (uint64_t i = first_chunk_behind(kept, range.base); i < kept.chunks.size(); ++i) {
        const Chunk &chunk = kept.chunks[i];
        if (chunk.base >= range.end()) break;
        const uintptr_t end = chunk.base + chunk.size;
        BackupMove move;
        move.chunk = chunk;
        move.base = chunk.base > range.base ? chunk.base : range.base;
        move.size = (end < range.end() ? end : range.end()) - move.base;
        if (!plan->moves.push_back(move)) return no_memory();
      }
    }
    if (!plan->part_ends.push_back(plan->moves.size())) return no_memory();
  }
  return Status();
}

}  // namespace gmm
