// SPDX-License-Identifier: Apache-2.0
// Where the contents of paused memory wait, and how they get there and back.
//
// What is kept of one extent is a list of chunks, by address. A chunk lies in one of the tiers: the page-locked arena, pageable
// memory, a file, or nowhere when it is all zero. A save takes the first tier that has room: arena, pageable, file.
// Chunks of an earlier save that are still true are not copied again.
#ifndef GMM_ENGINE_BACKUP_H
#define GMM_ENGINE_BACKUP_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/core.h"

namespace gmm {

struct ByteRange {
  uintptr_t base = 0;
  uint64_t size = 0;
  uintptr_t end() const { return base + size; }
};

enum class Tier : uint32_t { kZero, kArena, kPageable, kFile };

struct Chunk {
  uintptr_t base = 0;
  uint64_t size = 0;
  Tier tier = Tier::kZero;
  bool checked = false;   // `checksum` is of its bytes
  uint64_t where = 0;     // in the tier
  uint64_t checksum = 0;  // XXH3, 64 bits
};

// What is kept of one extent: chunks by address, without overlaps. The store that filled it empties it.
struct KeptContents {
  explicit KeptContents(const HostAllocator &allocator) : chunks(allocator) {}
  Vector<Chunk> chunks;
};

// One extent on its way out or in.
struct BackupPart {
  const ByteRange *ranges = nullptr;  // live contents, by address, without overlaps; not NULL when count is not 0
  uint64_t range_count = 0;
  KeptContents *kept = nullptr;
};

// What the store asks and tells during a save or restore, on the calling thread.
struct BackupSteps {
  void *user = nullptr;
  // Restore: before the first copy into the part. A failure ends it. Never called for a part after one that failed. May be NULL.
  Status (*before)(void *user, uint64_t part) = nullptr;
  // All of the part's contents are out (or in), in the order of the parts; also for a part without ranges. May be NULL.
  Status (*after)(void *user, uint64_t part) = nullptr;
  // At least every 64 MiB, and once before the first copy: not OK (CANCELLED) ends it. Bytes of the ranges, also those that need no copy. May be NULL.
  Status (*progress)(void *user, uint64_t bytes) = nullptr;
};

struct BackupTotals {
  uint64_t arena = 0, pageable = 0, file = 0, zero = 0;  // bytes of contents
};

class BackupArena;
class BackupFile;

// One for a context. Any thread; one save or restore at a time is the caller's to see to.
class BackupStore {
 public:
  explicit BackupStore(Core &core);
  ~BackupStore();
  BackupStore(const BackupStore &) = delete;
  BackupStore &operator=(const BackupStore &) = delete;

  Status configure(const gmm_backup_desc &desc);
  // gmm_backup_prepare(): the arena has this much room that is unused.
  Status prepare(Device device, uint64_t bytes);

  // Copies out what the parts name and adds chunks to what is kept of them. `contents` is HOST or FILE; flags are GMM_TAG_*.
  // The device is idle. A failure (or a step's) leaves `kept` as it was, and no copy under way.
  Status save(Device device, gmm_contents contents, uint32_t flags, const BackupPart *parts, uint64_t count,
              const BackupSteps &steps);
  // Copies in what the ranges name, as far as it is kept; keeps the chunks. Addresses that no chunk covers stay as they are. Contents that
  // are all zero are written too. CORRUPT and IO name the range. After a failure no copy is under way.
  Status restore(Device device, const BackupPart *parts, uint64_t count, const BackupSteps &steps);
  // Kept contents of the range, all of which chunks cover, to host memory; no device is touched. INVALID_VALUE when they do not.
  Status read(const KeptContents &kept, ByteRange range, void *out);

  // The chunks go that overlap the range, and their room is free.
  void drop(KeptContents &kept, ByteRange range);
  void drop_all(KeptContents &kept);
  // Whether the library was built with xxhash, which GMM_TAG_CHECKSUM needs.
  static bool can_checksum();
  static BackupTotals totals(const KeptContents &kept);

  // Page-locked memory that holds nothing goes back to the system. For gmm_trim(); does not wait for a save under way.
  uint64_t trim();
  void query(gmm_backup_info *out);
  // Everything goes; nothing is kept any more. The context ends.
  void clear();

 private:
  Core &core_;
  // The rest is the implementation's.
};

}  // namespace gmm
#endif
