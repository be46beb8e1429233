// SPDX-License-Identifier: Apache-2.0
// Kept contents for the program to read, without a device.
#include <cinttypes>
#include <cstring>

#include "base/os_memory.h"
#include "engine/backup/checksum.h"
#include "engine/backup/plan.h"
#include "engine/backup/store.h"

namespace gmm {
namespace {

bool is_in_memory(const Chunk &chunk) { return chunk.tier == Tier::kArena || chunk.tier == Tier::kPageable; }

Status name_range(Status status, const Chunk &chunk) {
  return prefix(status, "Contents of %#" PRIxPTR " to %#" PRIxPTR ": ", chunk.base, chunk.base + chunk.size);
}

Status check(const Chunk &chunk, const char *bytes) {
  if (!chunk.checked || backup_checksum(bytes, chunk.size) == chunk.checksum) return Status();
  return name_range(
      fail(GMM_ERROR_CORRUPT, "the bytes that were kept differ from their checksum; they cannot be trusted."), chunk);
}

}  // namespace

Status BackupStore::check_covered(const KeptContents &kept, ByteRange range) const {
  uintptr_t at = range.base;
  for (uint64_t i = first_chunk_behind(kept, range.base); i < kept.chunks.size() && at < range.end(); ++i) {
    if (kept.chunks[i].base > at) break;
    at = kept.chunks[i].base + kept.chunks[i].size;
  }
  if (at >= range.end()) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "Of %#" PRIxPTR " to %#" PRIxPTR " no contents are kept from %#" PRIxPTR " on.",
              range.base, range.end(), at);
}

// `part` lies in the chunk. `buffer`: a chunk's bytes, made when first needed.
Status BackupStore::read_chunk(const Chunk &chunk, ByteRange part, char *out, char **buffer) {
  const uint64_t offset = part.base - chunk.base;
  if (chunk.tier == Tier::kZero) {
    std::memset(out, 0, part.size);
    return Status();
  }
  if (is_in_memory(chunk)) {
    const char *bytes = tiers_.address(chunk);
    GMM_TRY(check(chunk, bytes));
    std::memcpy(out, bytes + offset, part.size);
    return Status();
  }
  if (*buffer == nullptr) {
    void *memory = nullptr;
    GMM_TRY(os::map_anonymous(kBackupChunk, os::kHugePage, &memory));
    *buffer = static_cast<char *>(memory);
  }
  if (const int error = tiers_.file.read(chunk.where, *buffer, backup_room_of(chunk.size)); error != 0)
    return name_range(tiers_.file.failed(error, false), chunk);
  GMM_TRY(check(chunk, *buffer));
  std::memcpy(out, *buffer + offset, part.size);
  return Status();
}

Status BackupStore::read(const KeptContents &kept, ByteRange range, void *out) {
  GMM_TRY(check_covered(kept, range));
  char *buffer = nullptr;
  Status status;
  for (uint64_t i = first_chunk_behind(kept, range.base); i < kept.chunks.size() && status.ok(); ++i) {
    const Chunk &chunk = kept.chunks[i];
    if (chunk.base >= range.end()) break;
    const uintptr_t begin = chunk.base > range.base ? chunk.base : range.base;
    const uintptr_t chunk_end = chunk.base + chunk.size;
    const uintptr_t end = chunk_end < range.end() ? chunk_end : range.end();
    status = read_chunk(chunk, ByteRange{begin, end - begin}, static_cast<char *>(out) + (begin - range.base), &buffer);
  }
  MessageGuard keep;
  if (buffer != nullptr) os::unmap(buffer, kBackupChunk).ignore();  // our own mapping, whole
  return status;
}

}  // namespace gmm
