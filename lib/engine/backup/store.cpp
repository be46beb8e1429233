// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/store.h"

#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/os_memory.h"
#include "engine/backup/checksum.h"

namespace gmm {

// --- Settings, and memory for later saves -------------------------------------------------------------------------

Status BackupStore::configure(const gmm_backup_desc &desc) { return tiers_.settings.set(desc); }

// fn(TransferBuffers &) -> Status. One transfer after the other finds the same buffers, and so do those of several
// devices. More than that go.
template <typename Fn>
Status BackupStore::in_transfer(Fn fn) {
  TransferBuffers *buffers = nullptr;
  {
    LockGuard guard(transfers_mutex_);
    if (spare_ != nullptr)
      buffers = std::exchange(spare_, spare_->next);
    else if ((buffers = allocator_.create<TransferBuffers>(tiers_.core)) == nullptr)
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to keep contents; free host memory.");
    // The first transfer may change the number of threads, as no task is running.
    if (const uint32_t wanted = tiers_.settings.threads(); running_++ == 0 && wanted != thread_count_) {
      tiers_.threads.set_count(wanted);
      thread_count_ = wanted;
    }
  }
  const Status status = fn(*buffers);
  MessageGuard message_guard;
  {
    LockGuard guard(transfers_mutex_);
    --running_;
    const uint32_t devices = tiers_.core.backend->device_count();
    uint32_t spares = 0;
    for (const TransferBuffers *each = spare_; each != nullptr; each = each->next) ++spares;
    if (spares < (devices == 0 ? 1 : devices)) {
      buffers->next = spare_;
      spare_ = std::exchange(buffers, nullptr);
    }
  }
  allocator_.destroy(buffers);
  return status;
}

Status BackupStore::prepare(Device device, uint64_t bytes) {
  return in_transfer([&](TransferBuffers &) -> Status {
    BackupLimits limits;
    GMM_TRY(tiers_.settings.limits(tiers_.arena.bytes(), tiers_.pageable.bytes(), &limits));
    bool fits = false;
    GMM_TRY(tiers_.arena.make_free_ready(device, bytes, limits.arena, &fits));
    if (fits) return Status();
    return fail(GMM_ERROR_LIMIT_EXCEEDED,
                "gmm_backup_reserve(): %" PRIu64 " bytes of page-locked memory: the limit is %" PRIu64
                " bytes, of which %" PRIu64
                " are in use; raise it by gmm_backup_configure() or GMM_BACKUP_ARENA_LIMIT, or ask for less.",
                bytes, limits.arena,
                tiers_.kept_bytes[static_cast<uint32_t>(Tier::kArena)].load(std::memory_order_relaxed));
  });
}

// --- Contents -----------------------------------------------------------------------------------------------------

Status BackupStore::save(Device device, gmm_contents contents, uint32_t flags, const BackupPart *parts, uint64_t count,
                         const BackupSteps &steps) {
  return in_transfer([&](TransferBuffers &buffers) {
    return save_contents(tiers_, buffers, device, contents, flags, parts, count, steps);
  });
}

Status BackupStore::restore(Device device, const BackupPart *parts, uint64_t count, const BackupSteps &steps) {
  return in_transfer(
      [&](TransferBuffers &buffers) { return restore_contents(tiers_, buffers, device, parts, count, steps); });
}

// `part` lies in the chunk. `buffer` holds a chunk of a file; the first one makes it.
Status BackupStore::read_chunk(const Chunk &chunk, ByteRange part, char *out, char **buffer) {
  const uint64_t offset = part.base - chunk.base;
  if (chunk.tier == Tier::kZero) {
    std::memset(out, 0, part.size);
    return Status();
  }
  const char *bytes = nullptr;
  if (chunk.tier == Tier::kFile) {
    if (*buffer == nullptr) {
      void *memory = nullptr;
      GMM_TRY(os::map_anonymous(kMaxChunk, os::kHugePage, &memory));
      *buffer = static_cast<char *>(memory);
    }
    if (const int error = tiers_.file.read(chunk.location, *buffer, size_in_tier(chunk.size)); error != 0)
      return name_chunk(tiers_.file.error_status(error, false), chunk);
    bytes = *buffer;
  } else {
    bytes = tiers_.address(chunk);
  }
  if (!chunk.matches_checksum(bytes)) return corrupt_chunk(chunk);
  std::memcpy(out, bytes + offset, part.size);
  return Status();
}

Status BackupStore::read(const KeptContents &kept, ByteRange range, void *out) {
  char *buffer = nullptr;
  Status status;
  uintptr_t at = range.base;
  for (uint64_t i = kept.first_chunk_behind(at); i < kept.chunks.size() && status.ok() && at < range.end(); ++i) {
    const Chunk &chunk = kept.chunks[i];
    if (chunk.base > at) break;
    const uintptr_t end = chunk.end() < range.end() ? chunk.end() : range.end();
    status = read_chunk(chunk, ByteRange{at, end - at}, static_cast<char *>(out) + (at - range.base), &buffer);
    at = end;
  }
  if (status.ok() && at < range.end())
    status = fail(GMM_ERROR_INVALID_VALUE,
                  "Reading kept contents of %#" PRIxPTR " to %#" PRIxPTR ": none are kept from %#" PRIxPTR
                  " on; read memory that was live when it was paused.",
                  range.base, range.end(), at);
  MessageGuard message_guard;
  if (buffer != nullptr) os::unmap(buffer, kMaxChunk).ignore();  // a whole mapping of this function cannot be refused
  return status;
}

void BackupStore::drop(KeptContents &kept, ByteRange range) {
  uint64_t remaining = kept.first_chunk_behind(range.base);
  uint64_t i = remaining;
  for (; i < kept.chunks.size() && kept.chunks[i].base < range.end(); ++i) tiers_.drop_kept(kept.chunks[i]);
  if (i == remaining) return;
  while (i < kept.chunks.size()) kept.chunks[remaining++] = kept.chunks[i++];
  kept.chunks.truncate(remaining);
}

// --- Totals, and memory that keeps nothing ------------------------------------------------------------------------

BackupTotals BackupStore::totals(const KeptContents &kept) {
  BackupTotals totals;
  uint64_t *const of_tier[] = {&totals.zero, &totals.arena, &totals.pageable, &totals.file};
  for (const Chunk &chunk : kept.chunks) *of_tier[static_cast<uint32_t>(chunk.tier)] += chunk.size;
  return totals;
}

uint64_t BackupStore::trim() {
  uint64_t bytes = tiers_.arena.trim();
  LockGuard guard(transfers_mutex_);
  if (running_ == 0) tiers_.file.close_unused();  // a transfer may be about to use it
  for (TransferBuffers *each = spare_; each != nullptr; each = each->next) bytes += each->close();
  return bytes;
}

void BackupStore::query(gmm_backup_info *out) {
  const auto kept = [this](Tier tier) {
    return tiers_.kept_bytes[static_cast<uint32_t>(tier)].load(std::memory_order_relaxed);
  };
  out->arena_bytes = tiers_.arena.bytes();
  out->arena_used = kept(Tier::kArena);
  out->pageable_bytes = kept(Tier::kPageable);
  out->file_bytes = kept(Tier::kFile);
  out->zero_bytes = kept(Tier::kZero);
  out->copied_bytes = tiers_.copied_bytes.load(std::memory_order_relaxed);
  out->skipped_bytes = tiers_.skipped_bytes.load(std::memory_order_relaxed);
  BackupLimits limits;
  MessageGuard message_guard;
  // With a wrong environment variable there is no limit to report: the next save fails and names the variable.
  tiers_.settings.limits(out->arena_bytes, tiers_.pageable.bytes(), &limits).ignore();
  out->arena_limit = limits.arena;
}

void BackupStore::clear() {
  LockGuard guard(transfers_mutex_);
  tiers_.arena.clear();
  tiers_.pageable.clear();
  tiers_.file.clear();
  while (spare_ != nullptr) allocator_.destroy(std::exchange(spare_, spare_->next));
  tiers_.threads.stop();
  tiers_.file_threads.stop();
  thread_count_ = UINT32_MAX;
  for (std::atomic<uint64_t> &kept : tiers_.kept_bytes) kept.store(0, std::memory_order_relaxed);
}

void BackupStore::forget(Extent &extent) {
  if (extent.kept == nullptr) return;
  views.end(ByteRange{base_of(extent), size_of(extent)});
  drop(*extent.kept);
  allocator_.destroy(extent.kept);
  extent.kept = nullptr;
}

void BackupStore::forget(Extent &extent, ByteRange range) {
  if (extent.kept == nullptr) return;
  KeptContents &kept = *extent.kept;
  views.end(range);
  if (!is_paused(extent)) return drop(kept, range);
  for (uint64_t i = kept.chunks.size(); i-- > 0;) {
    const Chunk chunk = kept.chunks[i];
    if (chunk.base >= range.base && chunk.base + chunk.size <= range.end())
      drop(kept, ByteRange{chunk.base, chunk.size});
  }
}

void BackupStore::end_retained(Extent &extent) {
  views.make_stale(ByteRange{base_of(extent), size_of(extent)});
  drop(*extent.kept);
  extent.kept->is_retained = false;
}

void BackupStore::drop_saved(Extent &extent) {
  if (extent.kept == nullptr) return;
  if (!views.make_stale(ByteRange{base_of(extent), size_of(extent)})) return forget(extent);
  drop(*extent.kept);
  extent.kept->is_retained = true;  // so that the view ends with the memory
  extent.kept->epoch = KeptContents::kNoEpoch;
}

bool BackupStore::merge(Extent &into, Extent &from) {
  if (from.kept == nullptr) return true;
  if (into.kept != nullptr) {
    Vector<Chunk> &chunks = into.kept->chunks;
    if (!chunks.reserve(chunks.size() + from.kept->chunks.size())) return false;
    for (const Chunk &chunk : from.kept->chunks) chunks.push_back_reserved(chunk);
    if (from.kept->epoch < into.kept->epoch) into.kept->epoch = from.kept->epoch;
    into.kept->is_retained = into.kept->is_retained || from.kept->is_retained;
    if (into.kept->is_retained) into.kept->epoch = KeptContents::kNoEpoch;
    allocator_.destroy(from.kept);
  } else {
    into.kept = from.kept;
  }
  from.kept = nullptr;
  return true;
}

}  // namespace gmm
