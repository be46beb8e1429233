// SPDX-License-Identifier: Apache-2.0
// The report of the blocks that are live when their context ends.
//
// Owns groups of blocks of one tag, kind, device, size and name. There are at most kMostGroups of them: the smaller
// half is only counted when there would be more. So the report needs at most 300 KiB, however many blocks are live.
// Callers: Context, once, when no other thread is inside it.
#ifndef GMM_ENGINE_TRACE_LEAK_REPORT_H
#define GMM_ENGINE_TRACE_LEAK_REPORT_H

#include <cstdint>

#include "base/hash_table.h"
#include "base/log.h"
#include "base/vector.h"
#include "engine/heap/heap.h"
#include "engine/limits/tag.h"

namespace gmm {

class LeakReport {
 public:
  static constexpr uint32_t kMostGroups = 1024;
  static constexpr uint32_t kMostLines = 32;

  explicit LeakReport(const HostAllocator &allocator);

  // Adds the live blocks of a heap. Takes the heap's lock.
  void add(Heap &heap, const Tag &tag);
  // Writes a warning for each group, those of most bytes first, and one for the sum. Nothing is live: writes nothing.
  void write(const Log &log);

 private:
  struct Group {
    uint64_t size, blocks;
    gmm_tag tag;
    Kind kind;
    gmm_device device;
    char tag_name[sizeof(Tag::name)];
    char name[BlockNotes::kNameSize];

    bool is_like(const Group &other) const;
    uint64_t hash() const;
    uint64_t bytes() const { return size * blocks; }
  };

  void add(const Group &block);
  void sort_groups();
  void forget_smaller_half();

  Vector<Group> groups_;
  HashTable<uint32_t> indices_;  // of groups_
  uint64_t blocks_ = 0, bytes_ = 0;
};

}  // namespace gmm
#endif
