// SPDX-License-Identifier: Apache-2.0
// Memory of objects that ended while threads without a lock may still read them: it stays memory of such objects.
#ifndef GMM_BASE_RETIRED_MEMORY_H
#define GMM_BASE_RETIRED_MEMORY_H

#include <cstdint>

#include "base/host_allocator.h"
#include "base/lock.h"

namespace gmm {

// Any thread. Its lock comes after all others. The first word of retired memory is a pointer; the rest stays as it was.
class RetiredMemory {
 public:
  // Memory is used again only after so many further objects have ended, so a stale handle is recognised for as long.
  static constexpr uint64_t kQuarantine = 256;

  // size, alignment: of each object, at least that of a pointer.
  RetiredMemory(const HostAllocator &allocator, uint64_t size, uint64_t alignment)
      : allocator_(allocator), size_(size), alignment_(alignment) {}
  ~RetiredMemory() {
    while (Entry *entry = oldest_) {
      oldest_ = entry->newer;
      allocator_.deallocate(entry, size_);
    }
  }

  // Memory for an object: that of one which ended long ago, or new memory. NULL without host memory.
  void *take() {
    {
      LockGuard guard(mutex_);
      if (count_ > kQuarantine) {
        Entry *entry = oldest_;
        oldest_ = entry->newer;
        --count_;
        return entry;
      }
    }
    return allocator_.allocate(size_, alignment_);
  }
  // The object in this memory of take() has ended.
  void retire(void *memory) {
    Entry *entry = ::new (memory) Entry{nullptr};
    LockGuard guard(mutex_);
    (count_ == 0 ? oldest_ : newest_->newer) = entry;
    newest_ = entry;
    ++count_;
  }

 private:
  struct Entry {
    Entry *newer;
  };

  const HostAllocator allocator_;
  const uint64_t size_, alignment_;
  Mutex mutex_{LockRank::kRetiredMemory};
  Entry *oldest_ = nullptr, *newest_ = nullptr;
  uint64_t count_ = 0;
};

}  // namespace gmm
#endif
