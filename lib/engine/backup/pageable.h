// SPDX-License-Identifier: Apache-2.0
// Ordinary host memory for contents that the arena has no room for.
#ifndef GMM_ENGINE_BACKUP_PAGEABLE_H
#define GMM_ENGINE_BACKUP_PAGEABLE_H

#include "base/lock.h"
#include "engine/backup/range_allocator.h"
#include "engine/space/core.h"

namespace gmm {

// Addresses are reserved once; pages come with the first write and go when room is given back. Any thread.
class BackupPageable {
 public:
  explicit BackupPageable(Core &core) : room_(core.allocator) {}
  ~BackupPageable() { clear(); }
  BackupPageable(const BackupPageable &) = delete;
  BackupPageable &operator=(const BackupPageable &) = delete;

  // False past `limit` bytes in all, and where the system gives no addresses.
  [[nodiscard]] bool take(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *where);
  void give(uint64_t where, uint64_t size);
  char *address(uint64_t where) const { return base_ + where; }
  uint64_t bytes();
  void clear();
  // Copies may still touch it: clear() leaves it where it is.
  void abandon() { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  bool open_more(uint64_t size);

  char *base_ = nullptr;
  std::atomic<bool> abandoned_{false};
  Mutex mutex_;
  BackupRoom room_;
  uint64_t reserved_ = 0, opened_ = 0;
};

}  // namespace gmm
#endif
