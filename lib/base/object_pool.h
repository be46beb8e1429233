// SPDX-License-Identifier: Apache-2.0
// A pool of objects whose memory stays of their type until the pool ends. A reader without a lock may look at a
// returned object and finds an object of the same type.
#ifndef GMM_BASE_OBJECT_POOL_H
#define GMM_BASE_OBJECT_POOL_H

#include <atomic>
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

  // NULL: there is no memory.
  T *take() {
    LockGuard guard(mutex_);
    if (!has_free() && !grow()) return nullptr;
    return take_locked();
  }
  // Never waits and asks for no memory. NULL: there is no free object, or another thread is in the pool.
  T *try_take() {
    if (!mutex_.try_lock()) return nullptr;
    const UnlockAtEnd guard(mutex_);
    return has_free() ? take_locked() : nullptr;
  }
  // Never waits: while another thread is in the pool, the object goes where the next one finds it.
  void put(T *object) {
    Item *item = reinterpret_cast<Item *>(object);
    if (mutex_.try_lock()) {
      const UnlockAtEnd guard(mutex_);
      item->next_free = free_;
      free_ = item;
      --used_;
      return;
    }
    item->next_free = returned_.load(std::memory_order_relaxed);
    while (
        !returned_.compare_exchange_weak(item->next_free, item, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  // So many objects can be taken without more memory. False: there is none.
  [[nodiscard]] bool provide(uint64_t count) {
    LockGuard guard(mutex_);
    take_returned();
    while (made_ - used_ < count)
      if (!grow()) return false;
    return true;
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

  // The rest with the lock held.
  void take_returned() {
    for (Item *item = returned_.exchange(nullptr, std::memory_order_acquire); item != nullptr;) {
      Item *next = item->next_free;
      item->next_free = free_;
      free_ = item;
      --used_;
      item = next;
    }
  }
  bool has_free() {
    if (free_ == nullptr) take_returned();
    return free_ != nullptr;
  }
  T *take_locked() {
    Item *item = free_;
    free_ = item->next_free;
    ++used_;
    return &item->object;
  }
  bool grow() {
    Chunk *chunk = allocator_.template create<Chunk>();
    if (chunk == nullptr) return false;
    chunk->next = chunks_;
    chunks_ = chunk;
    for (Item &item : chunk->items) {
      item.next_free = free_;
      free_ = &item;
    }
    made_ += kChunk;
    return true;
  }

  const HostAllocator allocator_;
  Mutex mutex_{LockRank::kObjectPool};
  Chunk *chunks_ = nullptr;
  Item *free_ = nullptr;
  uint64_t made_ = 0, used_ = 0;  // objects; `used_` counts those that are in returned_
  std::atomic<Item *> returned_{nullptr};
};

}  // namespace gmm
#endif
