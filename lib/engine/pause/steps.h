// SPDX-License-Identifier: Apache-2.0
// What pause.cpp and its companions share.
#ifndef GMM_ENGINE_PAUSE_STEPS_H
#define GMM_ENGINE_PAUSE_STEPS_H

#include <functional>

#include "engine/pause/pause.h"

namespace gmm {

inline void *address_of(const Extent &extent) {
  return reinterpret_cast<void *>(extent.base.load(std::memory_order_relaxed));
}
inline uintptr_t end_of(const Extent &extent) { return base_of(extent) + size_of(extent); }
inline bool is_detached(const Region &region) { return region.paused.load(std::memory_order_relaxed) != 0; }

template <typename Fn>
void for_each_region(Heap &heap, Fn fn) {
  for (Region *region = heap.regions().front(), *next; region != nullptr; region = next) {
    next = heap.regions().next(region);
    fn(*region);
  }
}
template <typename Fn>
void for_each_extent(Region &region, Fn fn) {
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent)) fn(*extent);
}
template <typename Fn>
void for_each_extent(Heap &heap, Fn fn) {
  for_each_region(heap, [&](Region &region) { for_each_extent(region, fn); });
}

// The heaps of a transition in the order of their tags' priorities. Locked ones are unlocked at the end.
class Pauser::Shares {
 public:
  explicit Shares(const HostAllocator &allocator) : allocator_(allocator), shares_(allocator) {}
  ~Shares() {
    for (HeapShare *share : shares_) {
      if (locked_) share->heap->mutex.unlock();
      allocator_.destroy(share);
    }
  }
  Shares(const Shares &) = delete;
  Shares &operator=(const Shares &) = delete;
  // Behind those of the same priority or higher.
  Status add(Heap &heap, const TagTable &tags) {
    const int32_t priority = tags.get(heap.options().tag)->priority.load(std::memory_order_relaxed);
    uint64_t at = shares_.size();
    while (at > 0 &&
           tags.get(shares_[at - 1]->heap->options().tag)->priority.load(std::memory_order_relaxed) < priority)
      --at;
    HeapShare *share = allocator_.create<HeapShare>(heap, allocator_);
    if (share != nullptr && shares_.insert(at, share)) return Status();
    allocator_.destroy(share);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
  }
  void erase(uint64_t index) {
    allocator_.destroy(shares_[index]);
    shares_.erase(index);
  }
  // By the one thread that has the pauser's lock: nobody else holds two heaps' locks. In the order of their addresses all the same, so that a
  // thread sanitizer, which knows no such gate, sees one order.
  void lock() {
    for (Heap *last = nullptr;;) {
      Heap *next = nullptr;
      for (HeapShare *share : shares_)
        if (std::less<Heap *>()(last, share->heap) && (next == nullptr || std::less<Heap *>()(share->heap, next)))
          next = share->heap;
      if (next == nullptr) break;
      next->mutex.lock();
      last = next;
    }
    locked_ = true;
  }
  uint64_t size() const { return shares_.size(); }
  HeapShare &operator[](uint64_t index) { return *shares_[index]; }
  HeapShare **begin() { return shares_.begin(); }
  HeapShare **end() { return shares_.end(); }

 private:
  const HostAllocator allocator_;
  Vector<HeapShare *> shares_;
  bool locked_ = false;
};

// Tells the program and the ticket how far the copies are, and asks whether to go on.
struct Pauser::Progress {
  const PauseRequest &request;
  uint64_t total = 0, before = 0;  // bytes of all shares; of those that are through
  Pauser *self = nullptr;
  HeapShare *share = nullptr;

  void begin() {
    if (request.ticket == nullptr) return;
    request.ticket->total.store(total, std::memory_order_relaxed);
    request.ticket->copied.store(0, std::memory_order_relaxed);
  }
  Status report(uint64_t bytes) {
    const uint64_t done = before + bytes;
    bool stop = false;
    if (request.ticket != nullptr) {
      request.ticket->copied.store(done, std::memory_order_relaxed);
      stop = request.ticket->cancelled.load(std::memory_order_relaxed) != 0;
    }
    if (request.progress != nullptr) stop = request.progress(request.progress_user, done, total) != 0 || stop;
    return stop ? fail(GMM_ERROR_CANCELLED, "The program ended it after %llu of %llu bytes; everything is as before.",
                       static_cast<unsigned long long>(done), static_cast<unsigned long long>(total))
                : Status();
  }
};

}  // namespace gmm
#endif
