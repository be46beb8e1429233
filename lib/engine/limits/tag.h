// SPDX-License-Identifier: Apache-2.0
// Tags: names for groups of allocations, and which one a thread allocates under.
#ifndef GMM_ENGINE_LIMITS_TAG_H
#define GMM_ENGINE_LIMITS_TAG_H

#include <gmm/pause.h>

#include <atomic>

#include "base/lock.h"
#include "base/registry.h"
#include "engine/heap/heap.h"
#include "engine/limits/quota.h"

namespace gmm {

struct Tag {
  char name[64] = {};
  std::atomic<gmm_contents> contents{GMM_CONTENTS_DROP};
  std::atomic<int32_t> priority{0};
  std::atomic<uint32_t> flags{0};  // GMM_TAG_*
  Quota held;
  Quota held_on[kMaxDevices];
  std::atomic<Heap *> heaps[kKindCount][kMaxDevices] = {};  // the shared heaps; user heaps are not here
  std::atomic<uint64_t> pauses{0};
};

// Any thread. A thread keeps the tags that it pushed, of all contexts, in its record (base/thread_record.h).
class TagTable {
 public:
  static constexpr uint32_t kMaxTags = 4096;
  static constexpr uint32_t kMaxTables = 16384;  // in a process
  static constexpr uint32_t kMaxDepth = 64;      // pushes of one thread on living contexts

  explicit TagTable(const HostAllocator &allocator);
  ~TagTable();
  TagTable(const TagTable &) = delete;
  TagTable &operator=(const TagTable &) = delete;
  Status init();

  Status create(const char *name, const gmm_tag_desc *desc, gmm_tag *out);
  Status update(gmm_tag tag, const gmm_tag_desc &desc);
  Status find(const char *name, gmm_tag *out);
  // NULL for a number that is no tag.
  Tag *get(gmm_tag tag) const { return tag < kMaxTags ? tags_[tag].load(std::memory_order_acquire) : nullptr; }
  uint32_t count() const { return count_.load(std::memory_order_acquire); }

  Status push(gmm_tag tag);
  Status pop();
  Status set_process_default(gmm_tag tag);
  gmm_tag current() const {
    const gmm_tag tag = common_.load(std::memory_order_relaxed);
    return __builtin_expect(tag != 0, 1) ? tag : current_of_thread();
  }

 private:
  gmm_tag current_of_thread() const;

  const HostAllocator allocator_;
  RegistryKey key_;
  Mutex mutex_;
  std::atomic<uint32_t> count_{0};  // tags are 1..count
  std::atomic<gmm_tag> process_default_{GMM_TAG_DEFAULT};
  // The current tag of every thread, as long as no thread ever pushed one; from then on 0.
  std::atomic<gmm_tag> common_{GMM_TAG_DEFAULT};
  std::atomic<Tag *> tags_[kMaxTags] = {};
};

}  // namespace gmm
#endif
