// SPDX-License-Identifier: Apache-2.0
// Tags: names for groups of allocations, and which one a thread allocates under.
//
// A tag is a number, which the process uses only once, so a number means nothing in any other context. Only
// GMM_TAG_DEFAULT names a tag of each context. gmm_alloc() finds the tag of a number without a lock: the process has
// one array of numbers, each with its context, and the memory of a destroyed tag stays memory of tags of its context.
// Names are found by their hash.
//
// Locks: TagTable::mutex_ guards names, the list and the settings of tags, and is a leaf. count_mutex, which comes
// before it, guards Tag::counted. A thread that ends gives its pushes back to the tables that still live
// (base/registry.h).
#ifndef GMM_ENGINE_LIMITS_TAG_H
#define GMM_ENGINE_LIMITS_TAG_H

#include <gmm/pause.h>

#include <atomic>

#include "base/hash_table.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/registry.h"
#include "base/retired_memory.h"
#include "engine/heap/heap.h"
#include "engine/limits/quota.h"

namespace gmm {

struct Tag;
class TagTable;

// The numbers of the process. The first ones are found by one load, those from kNear on lie in segments, each as large
// as all numbers before it. Segments stay until the process ends.
class TagNumbers {
 public:
  struct Slot {
    std::atomic<uint64_t> owner;  // TagTable::owner_; 0: no tag has the number
    Tag *tag;                     // does not change after `owner`; its memory stays as long as the table
  };
  static constexpr uint32_t kNear = 4096;

  static const Slot *find(gmm_tag number) {
    return __builtin_expect(number < kNear, 1) ? &near_[number] : find_far(number);
  }
  // The slot of a number that no tag had before. NULL without host memory, or without numbers.
  static Slot *take(gmm_tag *number);

 private:
  static constexpr uint32_t kFarSegments = 20;
  __attribute__((noinline, cold)) static Slot *find_far(gmm_tag number);

  static Slot near_[kNear];
  static std::atomic<Slot *> far_[kFarSegments];
  static std::atomic<uint32_t> last_;
};

struct Tag : Link<TagTable> {
  char name[64] = {};
  gmm_tag number = 0;
  TagNumbers::Slot *slot = nullptr;  // NULL: the default tag
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
  static constexpr uint32_t kMaxTables = 16384;  // in a process
  static constexpr uint32_t kMaxDepth = 64;      // pushes of one thread on living contexts

  explicit TagTable(const HostAllocator &allocator);
  ~TagTable();
  Status init();

  Status create(const char *name, const gmm_tag_desc *desc, gmm_tag *out);
  Status update(gmm_tag tag, const gmm_tag_desc &desc);
  Status find(const char *name, gmm_tag *out);
  // NULL for a number that is no tag of this context.
  Tag *get(gmm_tag tag) const {
    if (tag == GMM_TAG_DEFAULT) return default_tag_;
    const TagNumbers::Slot *slot = TagNumbers::find(tag);
    return slot == nullptr || slot->owner.load(std::memory_order_acquire) != owner_ ? nullptr : slot->tag;
  }
  // fn(Tag &) for each tag in the order of their numbers; it takes no lock.
  template <typename Fn>
  void for_each(Fn fn) {
    LockGuard guard(mutex_);
    for (Tag *tag = list_.front(); tag != nullptr; tag = list_.next(tag)) fn(*tag);
  }
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
  // The error of a number that is no tag of this context.
  static Status unknown(gmm_tag tag);

  // For gmm_stats_query(), which counts the tags that hold memory.
  Mutex count_mutex{LockRank::kTagCount};
  uint64_t counts = 0;

 private:
  gmm_tag current_of_thread() const;
  // NULL: no tag has the name. With mutex_ held.
  const Tag *find_named(const char *name) const;

  const HostAllocator allocator_;
  RegistryKey key_;
  uint64_t owner_ = 0;  // key_ as one number: kMaxTables * serial + slot
  Mutex mutex_{LockRank::kTagTable};
  Tag *default_tag_ = nullptr;  // the first one
  List<Tag, TagTable> list_;    // in the order of their numbers
  uint32_t count_ = 0;
  std::atomic<gmm_tag> default_{GMM_TAG_DEFAULT};
  // The current tag of every thread, as long as no thread ever pushed one; from then on 0.
  std::atomic<gmm_tag> common_{GMM_TAG_DEFAULT};
  HashTable<Tag *> names_;
  RetiredMemory memory_;
};

}  // namespace gmm
#endif
