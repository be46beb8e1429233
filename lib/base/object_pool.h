// SPDX-License-Identifier: Apache-2.0
// A pool of objects whose memory stays of their type until the pool ends. A reader without a lock may look at a
// returned object and finds an object of the same type.
#ifndef GMM_BASE_OBJECT_POOL_H
#define GMM_BASE_OBJECT_POOL_H

#include <cstdint>

#include "base/host_allocator.h"
#include "base/lock.h"

namespace gmm {

// An object is constructed once and destructed with the pool. take() returns an object in the state in which put() got
// it.
template <typename T>
class ObjectPool {
 public:
  explicit ObjectPool(const HostAllocator &allocator) : allocator_(allocator) {}
  ~ObjectPool() {
    while (chunks_ != nullptr) {
      Chunk *next = chunks_->next;
      for (Item &item : chunks_->items) item.object.~T();
      allocator_.deallocate(chunks_, sizeof(Chunk));
      chunks_ = next;
    }
  }
  ObjectPool(const ObjectPool &) = delete;
  ObjectPool &operator=(const ObjectPool &) = delete;

  // NULL: there is no memory.
  T *take() {
    LockGuard guard(mutex_);
    if (free_ == nullptr && !grow()) return nullptr;
    Item *item = free_;
    free_ = item->next_free;
    return &item->object;
  }
  void put(T *object) {
    LockGuard guard(mutex_);
    Item *item = reinterpret_cast<Item *>(object);
    item->next_free = free_;
    free_ = item;
  }

 private:
  static constexpr uint32_t kChunk = 32;
  struct Item {
    T object;  // first, so the object's address is the item's
    Item *next_free = nullptr;
  };
  struct Chunk {
    Chunk *next = nullptr;
    Item items[kChunk];
  };

  bool grow() {
    Chunk *chunk = allocator_.template create<Chunk>();
    if (chunk == nullptr) return false;
    chunk->next = chunks_;
    chunks_ = chunk;
    for (Item &item : chunk->items) {
      item.next_free = free_;
      free_ = &item;
    }
    return true;
  }

  const HostAllocator allocator_;
  Mutex mutex_{LockRank::kObjectPool};
  Chunk *chunks_ = nullptr;
  Item *free_ = nullptr;
};

}  // namespace gmm
#endif
