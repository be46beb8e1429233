// SPDX-License-Identifier: Apache-2.0
// Where the contents of paused memory wait, and how they get there and back.
//
// What is kept of one extent is a list of chunks, by address, of 4 MiB at most. A chunk lies in one of the tiers: the page-locked arena,
// pageable memory, a file, or nowhere when it is all zero. A save takes the first tier that has room: arena, pageable, file.
// Chunks of an earlier save that are still true are not copied again.
//
// backup_plan cuts ranges into chunks; backup_save and backup_restore are one operation each, over the window of copies of
// backup_transfer; backup_arena, backup_pageable and backup_file are the tiers, whose room backup_room counts; backup_threads
// copy, touch, check, read and write.
#ifndef GMM_ENGINE_BACKUP_STORE_H
#define GMM_ENGINE_BACKUP_STORE_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/backup/tiers.h"
#include "engine/backup/views.h"
#include "engine/space/core.h"

namespace gmm {

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
  KeptContents *kept = nullptr;  // of a restore, NULL when count is 0
};

// What the store asks and tells during a save or restore, on the calling thread.
struct BackupSteps {
  void *user = nullptr;
  // Restore: before the first copy into the part, and before its after(); once for each part, in order, also for one without contents. A
  // failure ends it. Never called for a part after one that failed. May be NULL. A save does not call it.
  Status (*before)(void *user, uint64_t part) = nullptr;
  // All of the part's contents are out (or in), in the order of the parts; also for a part without ranges. May be NULL.
  Status (*after)(void *user, uint64_t part) = nullptr;
  // At least every 64 MiB, and once before the first copy: not OK (CANCELLED) ends it. All bytes of the ranges so far in this call, also those that need no copy; of a restore, those that are kept. May be NULL.
  Status (*progress)(void *user, uint64_t bytes) = nullptr;
};

struct BackupTotals {
  uint64_t arena = 0, pageable = 0, file = 0, zero = 0;  // bytes of contents
};

// One for a context. Any thread; one save or restore at a time is the caller's to see to.
class BackupStore {
 public:
  explicit BackupStore(Core &core) : views(core.allocator), core_(core), tiers_(core) {}
  ~BackupStore() { clear(); }
  BackupStore(const BackupStore &) = delete;
  BackupStore &operator=(const BackupStore &) = delete;

  // Whether GMM_TAG_CHECKSUM can be had; else save() refuses it with NOT_SUPPORTED.
  static bool can_checksum();
  // From the next save on; what is kept stays where it is. IO: no such folder. INVALID_VALUE: its name is too long.
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
  static BackupTotals totals(const KeptContents &kept);
  // What is kept of the extent is wrong or wanted no more, and its views end. Nothing may be kept. The caller holds the lock of
  // the extent's heap.
  void forget(Extent &extent);
  // The same for a range inside it. Of paused memory only chunks inside the range go: the rest of a chunk is its neighbours'.
  void forget(Extent &extent, ByteRange range);

  // Page-locked memory that holds nothing goes back to the system, and a file that holds nothing. For gmm_trim(); does not wait for a save under way.
  uint64_t trim();
  void query(gmm_backup_info *out);
  // Everything goes; nothing is kept any more. The context ends.
  void clear();

  // What is kept of `from`, which follows `into`, is kept of `into`. False without host memory: nothing changed.
  [[nodiscard]] bool merge(Extent &into, Extent &from);

  BackupViews views;

 private:
  Status begin();
  Status check_covered(const KeptContents &kept, ByteRange range) const;
  Status read_chunk(const Chunk &chunk, ByteRange part, char *out, char **buffer);

  Core &core_;
  // A save, restore or prepare under way. Before the locks of the tiers and threads, which stand alone.
  Mutex work_mutex_;
  uint32_t threads_ = UINT32_MAX;  // as set in tiers_.threads
  BackupTiers tiers_;
};

}  // namespace gmm
#endif
