// SPDX-License-Identifier: Apache-2.0
// The free ranges of a tier. The allocator knows offsets only: the tier knows which memory or file lies behind
// them.
//
// Invariants: free ranges ascend by offset and never touch each other. The list always has a place for every allocated
// range, so free() needs no memory and cannot fail.
#ifndef GMM_ENGINE_BACKUP_RANGE_ALLOCATOR_H
#define GMM_ENGINE_BACKUP_RANGE_ALLOCATOR_H

#include "base/vector.h"

namespace gmm {

// Reserves addresses for a tier in memory: as many as the machine has bytes, in whole `unit`s, and 8 TiB at most, as a
// process has 128 TiB. False when the system gives none.
[[nodiscard]] bool reserve_tier_addresses(uint64_t unit, char **base, uint64_t *size);

// Not thread-safe: the tier's lock guards it.
class RangeAllocator {
 public:
  explicit RangeAllocator(const HostAllocator &allocator) : free_ranges_(allocator) {}

  // Adds a free range. False without host memory.
  [[nodiscard]] bool add(uint64_t offset, uint64_t size);
  // Takes a free range out, for good. False without host memory.
  [[nodiscard]] bool remove(uint64_t offset, uint64_t size);
  // Allocates at `hint` when `size` bytes are free there, so that neighbours in memory are neighbours in the tier; else
  // at the start of the first free range that is large enough. False when there is none, and without host memory.
  [[nodiscard]] bool allocate(uint64_t size, uint64_t hint, uint64_t *offset);
  // The range is one that allocate() returned.
  void free(uint64_t offset, uint64_t size);

  bool is_free(uint64_t offset, uint64_t size) const;
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  void clear();

 private:
  struct Range {
    uint64_t offset, size;
    uint64_t end() const { return offset + size; }
  };
  uint64_t first_behind(uint64_t offset) const;  // index of the first free range that begins behind the offset
  bool cut(uint64_t index, uint64_t offset, uint64_t size);
  void join(uint64_t offset, uint64_t size);

  Vector<Range> free_ranges_;
  uint64_t allocated_ranges_ = 0;
  uint64_t free_bytes_ = 0, allocated_bytes_ = 0;
};

}  // namespace gmm
#endif
