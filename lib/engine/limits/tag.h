// SPDX-License-Identifier: Apache-2.0
// Tags: names for groups of allocations, and which one a thread allocates under.
//
// A tag is a number, which is never used again in its context. gmm_alloc() finds the tag of a number without a lock, so
// the memory of a destroyed tag stays memory of tags. Names are found by their hash.
//
// Locks: TagTable::mutex_ guards names, numbers and the settings of tags, and is a leaf. count_mutex, which comes
// before it, guards Tag::counted. A thread that ends gives its
// pushes back to the tables that still live (base/registry.h).
#ifndef GMM_ENGINE_LIMITS_TAG_H
#define GMM_ENGINE_LIMITS_TAG_H

#include <gmm/pause.h>

#include <atomic>

#include "base/hash_table.h"
#include "base/lock.h"
#include "base/registry.h"
#include "base/retired_memory.h"
#include "engine/heap/heap.h"
#include "engine/limits/quota.h"

namespace gmm {

struct Tag {
  char name[64] = {};
  gmm_tag number = 0;
  std::atomic<gmm_contents> contents{GMM_CONTENTS_DROP};
  std::atomic<int32_t> priority{0};
  std::atomic<uint32_t> flags{0};       // GMM_TAG_*
  std::atomic<uint32_t> pushes{0};      // of all threads
  std::atomic<uint32_t> ending{0};      // 1: gmm_tag_destroy() is under way; nothing new may begin
  std::atomic<uint64_t> offered_by{0};  // the lease's identity; 0: none
  Quota held;
  Quota held_on[kMaxDevices];
  std::atomic<Heap *> heaps[kKindCount][kMaxDevices] = {};  // the shared heaps; user heaps are not here
  std::atomic<uint64_t> pauses{0};
  std::atomic<uint64_t> epoch{0};  // of the contents: what drops some of them begins another
  uint64_t counted = 0;            // the last count of tags that saw this one; with TagTable::count_mutex
};

// Any thread. A thread keeps the tags that it pushed, of all contexts, in its record (base/thread_record.h).
class TagTable : NoCopy {
 public:
  // The first so many numbers are found by one load. They cost 32 KiB a context.
  static constexpr uint32_t kNear = 4096;
  static constexpr uint32_t kMaxTables = 16384;  // in a process
  static constexpr uint32_t kMaxDepth = 64;      // pushes of one thread on living contexts

  explicit TagTable(const HostAllocator &allocator);
  ~TagTable();
  Status init();

  Status create(const char *name, const gmm_tag_desc *desc, gmm_tag *out);
  Status update(gmm_tag tag, const gmm_tag_desc &desc);
  Status find(const char *name, gmm_tag *out);
  // NULL for a number that is no tag.
  Tag *get(gmm_tag tag) const {
    return __builtin_expect(tag < kNear, 1) ? near_[tag].load(std::memory_order_acquire) : get_far(tag);
  }
  // No tag has a larger number.
  uint32_t last() const { return last_.load(std::memory_order_acquire); }
  // Writes up to `capacity` tags in ascending order, and how many there are.
  void list(gmm_tag *tags, uint32_t capacity, uint32_t *count);

  // The end of a tag has three steps. begin_end() fails with BUSY for the default and for a tag that a thread has
  // pushed. From then on nobody pushes the tag, makes it the default or makes a heap of it. The caller ends its heaps,
  // and then calls end(), or undo_end() if a heap is in use.
  Status begin_end(Tag &tag);
  void undo_end(Tag &tag) { tag.ending.store(0, std::memory_order_seq_cst); }
  void end(Tag &tag);

  Status push(gmm_tag tag);
  Status pop();
  Status set_default(gmm_tag tag);
  gmm_tag current() const {
    const gmm_tag tag = common_.load(std::memory_order_relaxed);
    return __builtin_expect(tag != 0, 1) ? tag : current_of_thread();
  }
  static Status unknown(gmm_tag tag);

  // For gmm_stats_query(), which counts the tags that hold memory.
  Mutex count_mutex{LockRank::kTagCount};
  uint64_t counts = 0;

 private:
  // Numbers from kNear on lie in segments, each as large as all numbers before it.
  static constexpr uint32_t kFarSegments = 20;
  using Slot = std::atomic<Tag *>;

  gmm_tag current_of_thread() const;
  __attribute__((noinline, cold)) Tag *get_far(gmm_tag tag) const;
  // NULL: no tag has the name. With mutex_ held.
  const Tag *find_named(const char *name) const;
  // The slot of a number, made now where it is far; NULL without host memory.
  Slot *make_slot(gmm_tag tag);

  const HostAllocator allocator_;
  RegistryKey key_;
  Mutex mutex_{LockRank::kTagTable};
  std::atomic<uint32_t> last_{0};
  uint32_t count_ = 0;
  std::atomic<gmm_tag> default_{GMM_TAG_DEFAULT};
  // The current tag of every thread, as long as no thread ever pushed one; from then on 0.
  std::atomic<gmm_tag> common_{GMM_TAG_DEFAULT};
  HashTable<Tag *> names_;
  RetiredMemory memory_;
  Slot near_[kNear] = {};
  std::atomic<Slot *> far_[kFarSegments] = {};
};

}  // namespace gmm
#endif
