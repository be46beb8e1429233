// SPDX-License-Identifier: Apache-2.0
// A sorted table of address ranges that readers search without a lock. A sequence number tells a reader that a writer
// interfered, and the reader searches again.
#ifndef GMM_BASE_RANGE_TABLE_H
#define GMM_BASE_RANGE_TABLE_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"

namespace gmm {

struct Range {
  uint64_t base = 0;
  uint64_t size = 0;
  uint64_t value = 0;
};

// Writers hold a lock of their own. An outgrown array stays until the table ends, as a reader may be in it. Arrays
// double, so together the outgrown ones are no larger than the last.
class RangeTable {
 public:
  explicit RangeTable(const HostAllocator &allocator) : allocator_(allocator) {}
  ~RangeTable() {
    for (Array *array = array_.load(std::memory_order_relaxed); array != nullptr;) {
      Array *older = array->older;
      allocator_.deallocate(array, sizeof(Array) + array->capacity * sizeof(Entry));
      array = older;
    }
  }

  // Makes sure that the next set() of as many ranges cannot fail. False: there is no memory.
  [[nodiscard]] bool reserve(uint64_t count) {
    Array *array = array_.load(std::memory_order_relaxed);
    if (array != nullptr && array->capacity >= count) return true;
    uint64_t capacity = array == nullptr ? 16 : array->capacity * 2;
    while (capacity < count) capacity *= 2;
    Array *grown = static_cast<Array *>(allocator_.allocate(sizeof(Array) + capacity * sizeof(Entry), 16));
    if (grown == nullptr) return false;
    grown->older = array;
    grown->capacity = capacity;
    Entry *entries = grown->entries();
    for (uint64_t i = 0; i < capacity; ++i) ::new (&entries[i]) Entry();
    for (uint64_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) entries[i].copy(array->entries()[i]);
    array_.store(grown, std::memory_order_release);
    return true;
  }

  // Replaces the contents by `count` ranges, sorted by base and disjoint. The caller has called reserve().
  void set(const Range *ranges, uint64_t count) {
    const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
    sequence_.store(sequence + 1, std::memory_order_relaxed);
    Entry *entries = count == 0 ? nullptr : array_.load(std::memory_order_relaxed)->entries();
    for (uint64_t i = 0; i < count; ++i) {
      // The release order on each field keeps the odd sequence number before it. Its partner is the acquire in find().
      entries[i].base.store(ranges[i].base, std::memory_order_release);
      entries[i].size.store(ranges[i].size, std::memory_order_release);
      entries[i].value.store(ranges[i].value, std::memory_order_release);
    }
    count_.store(count, std::memory_order_release);
    sequence_.store(sequence + 2, std::memory_order_release);
  }

  bool find(uint64_t address, Range *out) const {
    for (;;) {
      const uint64_t before = sequence_.load(std::memory_order_acquire);
      if ((before & 1) != 0) continue;
      const uint64_t count = count_.load(std::memory_order_acquire);
      bool found = false;
      if (count != 0) {
        const Array *array = array_.load(std::memory_order_acquire);
        const Entry *entries = array->entries();
        uint64_t low = 0, high = count < array->capacity ? count : array->capacity;
        while (low < high) {
          const uint64_t middle = (low + high) / 2;
          if (entries[middle].base.load(std::memory_order_acquire) <= address)
            low = middle + 1;
          else
            high = middle;
        }
        if (low != 0) {
          const Entry &entry = entries[low - 1];
          *out = Range{entry.base.load(std::memory_order_acquire), entry.size.load(std::memory_order_acquire),
                       entry.value.load(std::memory_order_acquire)};
          found = address - out->base < out->size;
        }
      }
      if (sequence_.load(std::memory_order_acquire) == before) return found;
    }
  }

 private:
  struct Entry {
    std::atomic<uint64_t> base{0}, size{0}, value{0};
    void copy(const Entry &other) {
      base.store(other.base.load(std::memory_order_relaxed), std::memory_order_relaxed);
      size.store(other.size.load(std::memory_order_relaxed), std::memory_order_relaxed);
      value.store(other.value.load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
  };
  struct Array {
    Array *older;
    uint64_t capacity;
    Entry *entries() { return reinterpret_cast<Entry *>(this + 1); }
    const Entry *entries() const { return reinterpret_cast<const Entry *>(this + 1); }
  };

  const HostAllocator allocator_;
  std::atomic<Array *> array_{nullptr};
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace gmm
#endif
