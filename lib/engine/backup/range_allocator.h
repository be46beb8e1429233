// SPDX-License-Identifier: Apache-2.0
// Which stretches of a tier are free. Only numbers: the tier knows what lies behind them.
#ifndef GMM_ENGINE_BACKUP_RANGE_ALLOCATOR_H
#define GMM_ENGINE_BACKUP_RANGE_ALLOCATOR_H

#include "base/vector.h"

namespace gmm {

// Not thread-safe. There is always place to note what comes back, so that giving back cannot fail.
class BackupRoom {
 public:
  explicit BackupRoom(const HostAllocator &allocator) : runs_(allocator) {}

  // New room, which is free. False without host memory.
  [[nodiscard]] bool add(uint64_t offset, uint64_t size);
  // Takes `size` bytes at `hint` where they are free there, so that what belongs together lies together; else the first
  // run that is large enough. False when there is none.
  [[nodiscard]] bool take(uint64_t size, uint64_t hint, uint64_t *offset);
  // A stretch that one take() gave.
  void give(uint64_t offset, uint64_t size);
  bool is_free(uint64_t offset, uint64_t size) const;
  // Room that is free goes. False without host memory.
  [[nodiscard]] bool remove(uint64_t offset, uint64_t size);
  uint64_t free_bytes() const { return free_; }
  uint64_t taken_bytes() const { return taken_; }
  void clear();

 private:
  struct Run {
    uint64_t offset, size;
    uint64_t end() const { return offset + size; }
  };
  uint64_t after(uint64_t offset) const;  // the index of the first run that begins behind it
  bool cut(uint64_t index, uint64_t offset, uint64_t size);
  void join(uint64_t offset, uint64_t size);

  Vector<Run> runs_;  // ascending, never touching each other; place for one more for each stretch that is taken
  uint64_t stretches_ = 0;
  uint64_t free_ = 0, taken_ = 0;
};

}  // namespace gmm
#endif
