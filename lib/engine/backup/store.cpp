// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/store.h"

#include <cinttypes>

#include "engine/backup/checksum.h"
#include "engine/backup/plan.h"
#include "engine/backup/restore.h"
#include "engine/backup/save.h"

namespace gmm {

bool BackupStore::can_checksum() { return has_backup_checksum(); }

Status BackupStore::configure(const gmm_backup_desc &desc) { return tiers_.settings.set(desc); }

// With the lock held.
Status BackupStore::begin() {
  if (const uint32_t wanted = tiers_.settings.threads(); wanted != threads_) {
    tiers_.threads.set_count(wanted);
    threads_ = wanted;
  }
  return Status();
}

Status BackupStore::prepare(Device device, uint64_t bytes) {
  LockGuard guard(work_mutex_);
  GMM_TRY(begin());
  BackupLimits limits;
  GMM_TRY(tiers_.settings.limits(tiers_.arena.bytes(), tiers_.pageable.bytes(), &limits));
  Status status;
  if (!tiers_.arena.plan_free(bytes, limits.arena))
    status =
        fail(GMM_ERROR_LIMIT_EXCEEDED,
             "%" PRIu64 " bytes of page-locked memory for contents: the limit is %" PRIu64 " with %" PRIu64
             " in use; raise it by gmm_set_backup() or GMM_BACKUP_ARENA_LIMIT, or ask for less.",
             bytes, limits.arena, tiers_.held[static_cast<uint32_t>(Tier::kArena)].load(std::memory_order_relaxed));
  if (status.ok()) status = tiers_.arena.make_all_ready(device);
  MessageGuard keep;
  if (!status.ok()) tiers_.arena.cancel_planned();
  return status;
}

Status BackupStore::save(Device device, gmm_contents contents, uint32_t flags, const BackupPart *parts, uint64_t count,
                         const BackupSteps &steps) {
  if ((flags & GMM_TAG_CHECKSUM) != 0 && !can_checksum())
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Checksums of contents: gmm was built without xxhash.h; build it with the xxhash library, or leave out "
                "GMM_TAG_CHECKSUM.");
  LockGuard guard(work_mutex_);
  GMM_TRY(begin());
  return BackupSave(tiers_, device, steps, contents, flags).run(parts, count);
}

Status BackupStore::restore(Device device, const BackupPart *parts, uint64_t count, const BackupSteps &steps) {
  LockGuard guard(work_mutex_);
  GMM_TRY(begin());
  return BackupRestore(tiers_, device, steps).run(parts, count);
}

void BackupStore::drop(KeptContents &kept, ByteRange range) {
  uint64_t stay = first_chunk_behind(kept, range.base);
  uint64_t i = stay;
  for (; i < kept.chunks.size() && kept.chunks[i].base < range.end(); ++i) tiers_.give(kept.chunks[i], true);
  if (i == stay) return;
  while (i < kept.chunks.size()) kept.chunks[stay++] = kept.chunks[i++];
  kept.chunks.truncate(stay);
}

void BackupStore::drop_all(KeptContents &kept) {
  for (const Chunk &chunk : kept.chunks) tiers_.give(chunk, true);
  kept.chunks.clear();
}

BackupTotals BackupStore::totals(const KeptContents &kept) {
  BackupTotals totals;
  for (const Chunk &chunk : kept.chunks) {
    switch (chunk.tier) {
      case Tier::kZero:
        totals.zero += chunk.size;
        break;
      case Tier::kArena:
        totals.arena += chunk.size;
        break;
      case Tier::kPageable:
        totals.pageable += chunk.size;
        break;
      case Tier::kFile:
        totals.file += chunk.size;
        break;
    }
  }
  return totals;
}

uint64_t BackupStore::trim() {
  uint64_t bytes = tiers_.arena.trim();
  // A save under way may be using them.
  if (work_mutex_.try_lock()) {
    tiers_.file.close_unused();
    bytes += tiers_.ring.close() + tiers_.probes.close();
    work_mutex_.unlock();
  }
  return bytes;
}

void BackupStore::query(gmm_backup_info *out) {
  const auto held = [this](Tier tier) {
    return tiers_.held[static_cast<uint32_t>(tier)].load(std::memory_order_relaxed);
  };
  out->arena_bytes = tiers_.arena.bytes();
  out->arena_used = held(Tier::kArena);
  out->pageable_bytes = held(Tier::kPageable);
  out->file_bytes = held(Tier::kFile);
  out->zero_bytes = held(Tier::kZero);
  out->copied_bytes = tiers_.copied.load(std::memory_order_relaxed);
  out->skipped_bytes = tiers_.skipped.load(std::memory_order_relaxed);
  BackupLimits limits;
  MessageGuard keep;
  // A wrong environment is the next save's to tell; there is no limit that holds then.
  tiers_.settings.limits(out->arena_bytes, tiers_.pageable.bytes(), &limits).ignore();
  out->arena_limit = limits.arena;
}

void BackupStore::clear() {
  LockGuard guard(work_mutex_);
  tiers_.arena.clear();
  tiers_.pageable.clear();
  tiers_.file.clear();
  tiers_.ring.close();
  tiers_.probes.close();
  tiers_.threads.stop();
  tiers_.requests.stop();
  threads_ = UINT32_MAX;
  for (std::atomic<uint64_t> &held : tiers_.held) held.store(0, std::memory_order_relaxed);
}

void BackupStore::forget(Extent &extent) {
  if (extent.kept == nullptr) return;
  views.end(ByteRange{base_of(extent), size_of(extent)});
  drop_all(*extent.kept);
  core_.allocator.destroy(extent.kept);
  extent.kept = nullptr;
}

void BackupStore::forget(Extent &extent, ByteRange range) {
  if (extent.kept == nullptr) return;
  KeptContents &kept = *extent.kept;
  if (!is_paused(extent)) return drop(kept, range);
  views.end(range);
  for (uint64_t i = kept.chunks.size(); i-- > 0;) {
    const Chunk chunk = kept.chunks[i];
    if (chunk.base >= range.base && chunk.base + chunk.size <= range.end())
      drop(kept, ByteRange{chunk.base, chunk.size});
  }
}

bool BackupStore::merge(Extent &into, Extent &from) {
  if (from.kept == nullptr) return true;
  if (into.kept != nullptr) {
    Vector<Chunk> &chunks = into.kept->chunks;
    if (!chunks.reserve(chunks.size() + from.kept->chunks.size())) return false;
    for (const Chunk &chunk : from.kept->chunks) chunks.push_back_reserved(chunk);
    core_.allocator.destroy(from.kept);
  } else {
    into.kept = from.kept;
  }
  from.kept = nullptr;
  return true;
}

}  // namespace gmm
