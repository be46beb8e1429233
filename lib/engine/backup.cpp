// SPDX-License-Identifier: Apache-2.0
#include "engine/backup.h"

#include <cstdlib>
#include <cstring>

namespace gmm {

BackupStore::BackupStore(Core &core) : core_(core) {}
BackupStore::~BackupStore() = default;
Status BackupStore::configure(const gmm_backup_desc &) { return Status(); }
Status BackupStore::prepare(Device, uint64_t) { return Status(); }
bool BackupStore::can_checksum() { return false; }
void BackupStore::drop_all(KeptContents &kept) { drop(kept, ByteRange{0, UINTPTR_MAX}); }
void BackupStore::clear() {}
uint64_t BackupStore::trim() { return 0; }
void BackupStore::query(gmm_backup_info *) {}

BackupTotals BackupStore::totals(const KeptContents &kept) {
  BackupTotals all;
  for (const Chunk &chunk : kept.chunks) all.pageable += chunk.size;
  return all;
}

void BackupStore::drop(KeptContents &kept, ByteRange range) {
  for (uint64_t i = kept.chunks.size(); i-- > 0;) {
    const Chunk chunk = kept.chunks[i];
    if (chunk.base >= range.end() || chunk.base + chunk.size <= range.base) continue;
    std::free(reinterpret_cast<void *>(chunk.where));
    kept.chunks.erase(i);
  }
}

Status BackupStore::save(Device device, gmm_contents, uint32_t, const BackupPart *parts, uint64_t count,
                         const BackupSteps &steps) {
  gmm_stream stream = nullptr;
  GMM_TRY(core_.backend->stream_create(device, &stream));
  Vector<Chunk> before(core_.allocator);
  uint64_t done = 0, part = 0;
  Status status = steps.progress == nullptr ? Status() : steps.progress(steps.user, 0);
  Vector<Chunk> added(core_.allocator);
  for (; part < count && status.ok(); ++part) {
    for (uint64_t i = 0; i < parts[part].range_count && status.ok(); ++i) {
      const ByteRange range = parts[part].ranges[i];
      bool there = false;
      for (const Chunk &chunk : parts[part].kept->chunks) there = there || (chunk.base <= range.base && chunk.base + chunk.size >= range.end());
      if (there) continue;
      drop(*parts[part].kept, range);
      Chunk chunk;
      chunk.base = range.base;
      chunk.size = range.size;
      chunk.tier = Tier::kPageable;
      void *room = std::malloc(range.size);
      chunk.where = reinterpret_cast<uint64_t>(room);
      status = core_.backend->copy(device, stream, room, reinterpret_cast<void *>(range.base), range.size);
      if (status.ok()) status = core_.backend->stream_synchronize(device, stream);
      if (!status.ok()) {
        core_.backend->synchronize(device).ignore();
        std::free(room);
        break;
      }
      uint64_t at = 0;
      while (at < parts[part].kept->chunks.size() && parts[part].kept->chunks[at].base < chunk.base) ++at;
      if (!parts[part].kept->chunks.insert(at, chunk) || !added.push_back(chunk)) std::abort();
      done += range.size;
      if (steps.progress != nullptr) status = steps.progress(steps.user, done);
    }
    if (status.ok() && steps.after != nullptr) status = steps.after(steps.user, part);
  }
  MessageGuard keep;
  if (!status.ok())
    for (uint64_t i = 0; i < count; ++i)
      for (const Chunk &chunk : added) drop(*parts[i].kept, ByteRange{chunk.base, chunk.size});
  core_.backend->stream_destroy(stream).ignore();
  return status;
}

Status BackupStore::restore(Device device, const BackupPart *parts, uint64_t count, const BackupSteps &steps) {
  gmm_stream stream = nullptr;
  GMM_TRY(core_.backend->stream_create(device, &stream));
  uint64_t done = 0;
  Status status = steps.progress == nullptr ? Status() : steps.progress(steps.user, 0);
  for (uint64_t part = 0; part < count && status.ok(); ++part) {
    for (uint64_t i = 0; i < parts[part].range_count && status.ok(); ++i) {
      const ByteRange range = parts[part].ranges[i];
      if (steps.before != nullptr) status = steps.before(steps.user, part);
      for (const Chunk &chunk : parts[part].kept->chunks) {
        const uintptr_t from = chunk.base > range.base ? chunk.base : range.base;
        const uintptr_t to = chunk.base + chunk.size < range.end() ? chunk.base + chunk.size : range.end();
        if (from >= to || !status.ok()) continue;
        status = core_.backend->copy(device, stream, reinterpret_cast<void *>(from),
                                     reinterpret_cast<void *>(chunk.where + (from - chunk.base)), to - from);
        if (status.ok()) status = core_.backend->stream_synchronize(device, stream);
      }
      done += range.size;
      if (status.ok() && steps.progress != nullptr) status = steps.progress(steps.user, done);
    }
    if (status.ok() && steps.after != nullptr) status = steps.after(steps.user, part);
  }
  MessageGuard keep;
  if (!status.ok()) core_.backend->synchronize(device).ignore();
  core_.backend->stream_destroy(stream).ignore();
  return status;
}

Status BackupStore::read(const KeptContents &kept, ByteRange range, void *out) {
  uintptr_t at = range.base;
  for (const Chunk &chunk : kept.chunks) {
    if (chunk.base > at || chunk.base + chunk.size <= at) continue;
    const uintptr_t to = chunk.base + chunk.size < range.end() ? chunk.base + chunk.size : range.end();
    std::memcpy(static_cast<char *>(out) + (at - range.base), reinterpret_cast<void *>(chunk.where + (at - chunk.base)), to - at);
    at = to;
    if (at == range.end()) return Status();
  }
  return fail(GMM_ERROR_INVALID_VALUE, "Not kept.");
}

}  // namespace gmm
