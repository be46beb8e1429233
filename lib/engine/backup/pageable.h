// SPDX-License-Identifier: Apache-2.0
// The pageable tier: ordinary host memory, for contents that the arena cannot take.
//
// The tier reserves addresses once (8 TiB at most). The system gives pages at the first write and takes them back when
// their range is freed. A CUDA device reaches this memory through a staging buffer (tiers.h).
#ifndef GMM_ENGINE_BACKUP_PAGEABLE_H
#define GMM_ENGINE_BACKUP_PAGEABLE_H

#include "base/lock.h"
#include "engine/backup/range_allocator.h"
#include "engine/space/core.h"

namespace gmm {

// Thread-safe.
class BackupPageable : NoCopy {
 public:
  explicit BackupPageable(Core &core) : ranges_(core.allocator) {}
  ~BackupPageable() { clear(); }

  // False when all ranges would exceed `limit` bytes, and when the system gives no addresses.
  [[nodiscard]] bool allocate(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *offset);
  void free(uint64_t offset, uint64_t size);
  char *address(uint64_t offset) const { return base_ + offset; }
  // Bytes of allocated ranges.
  uint64_t bytes();
  // Returns all pages and addresses to the system.
  void clear();
  // The device may still copy to or from this memory: clear() leaves it alone for good.
  void abandon() { is_abandoned_.store(true, std::memory_order_relaxed); }

 private:
  bool open_more_locked();

  char *base_ = nullptr;
  std::atomic<bool> is_abandoned_{false};
  Mutex mutex_{LockRank::kBackupPageable};  // guards what follows; last in the lock order
  RangeAllocator ranges_;
  uint64_t reserved_bytes_ = 0, opened_bytes_ = 0;  // of addresses; of those that may be written
};

}  // namespace gmm
#endif
