// SPDX-License-Identifier: Apache-2.0
// The transfer cache: full bins of free blocks between the caches of threads (the name is TCMalloc's). Where one thread
// frees what another allocates, a full bin goes over as it is, without the heap's lock, slabs, merging or best fit.
//
// A thread that swaps a batch's state to kHeld holds the batch: one inside enter() of its own cache, or a drain with
// HeapCaches::mutex held. A drain empties the caches of all threads first. With Heap::fast.has_paused set no owner
// moves a batch any more by then, so that nothing of a paused region is left.
#ifndef GMM_ENGINE_HEAP_TRANSFER_CACHE_H
#define GMM_ENGINE_HEAP_TRANSFER_CACHE_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "engine/heap/stream_order.h"
#include "engine/space/size_class.h"
#include "engine/space/span.h"

namespace gmm {

class Heap;

class TransferCache : NoCopy {
 public:
  static constexpr uint32_t kMaxBatch = 64;
  // Bytes of a batch, and of all at most: as much as one more thread's cache. include/gmm/memory.h promises it.
  static constexpr uint64_t kMaxBatchBytes = uint64_t{32} << 20, kBudget = uint64_t{128} << 20;

  explicit TransferCache(Heap &heap) : heap_(heap) {}
  ~TransferCache();

  // Takes in blocks of `block_bytes` each that were freed on a stream, which is no per-thread one. Other blocks may go
  // to the heap to make room. False: there is no room.
  bool put(StreamKey key, uint64_t block_bytes, const CacheEntry *entries, uint32_t count);
  // Takes out as many blocks as one put() brought, in the same order. Returns 0 when there are none.
  uint32_t take(StreamKey key, uint64_t block_bytes, CacheEntry *out);
  // Requests the cache lines of the slots of up to `count` large blocks that were taken after this one. A thread that
  // frees what others allocate mostly frees in the order of their allocation, and each slot comes from another
  // processor.
  void fetch_after(std::atomic<uint64_t> *slot, uint32_t count) const;

  // Everything to the heap. With HeapCaches::mutex held, as the next one.
  void drain() { drain_idle(0, 0); }
  // Those that nobody put there or took since a look at least `age` ago, all for 0; returns their bytes.
  uint64_t drain_idle(uint64_t now, uint64_t age);
  uint64_t bytes() const {
    const Batches *all = batches_.load(std::memory_order_acquire);
    if (all == nullptr) return 0;
    const uint64_t gone = all->gone.load(std::memory_order_acquire);  // first, as it follows the other
    return all->come.load(std::memory_order_relaxed) - gone;
  }

 private:
  // Blocks of one size and stream lie in one set. The places are many, as a thread that waited for a processor catches
  // up on many batches.
  static constexpr uint32_t kSets = 4, kWays = 16, kBatches = kSets * kWays;
  static constexpr uint32_t kOrder = 2048;
  // States; any other value is the tag of a full batch.
  static constexpr uint64_t kEmpty = 0, kHeld = 1;

  struct alignas(64) Batch {
    uint32_t count = 0;
    StreamKey key;
    uint64_t block_bytes = 0;
    std::atomic<uint64_t> fills{0};
    uint64_t seen_fills = 0, idle_since = 0;  // of drain_idle()
    CacheEntry entries[kMaxBatch];
    uint64_t bytes() const { return count * block_bytes; }
  };
  // The states apart, so that few lines of the processor's cache are searched.
  struct alignas(64) Batches {
    std::atomic<uint64_t> states[kBatches] = {};
    // Bytes that were ever put, and those of them that left. Each is written by one side: a put() reads `gone` only
    // when what it saw of it last is not enough.
    alignas(64) std::atomic<uint64_t> come{0};
    std::atomic<uint64_t> seen_gone{0};
    alignas(64) std::atomic<uint64_t> gone{0};
    // Large blocks in the order in which they will be allocated; where they are in it stands behind their slots, plus
    // 1.
    alignas(64) std::atomic<uint64_t> taken{0};
    alignas(64) std::atomic<std::atomic<uint64_t> *> order[kOrder] = {};
    Batch batch[kBatches];
  };

  static uint64_t tag_of(StreamKey key, uint64_t block_bytes) {
    const uint64_t mixed =
        (reinterpret_cast<uintptr_t>(key.stream) + block_bytes * 0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93;
    return (mixed ^ mixed >> 32) | 2;
  }
  static uint32_t first_way(uint64_t tag) { return (tag >> 2) % kSets * kWays; }
  static bool is_full(uint64_t state) { return state != kEmpty && state != kHeld; }
  static bool hold(Batches &all, uint32_t index, uint64_t state) {
    return all.states[index].compare_exchange_strong(state, kHeld, std::memory_order_acquire,
                                                     std::memory_order_relaxed);
  }
  // A span with one block has further slots that it does not use.
  static std::atomic<uint64_t> &order_of(std::atomic<uint64_t> *slot) { return slot[1]; }
  bool hold_room(Batches &all, uint32_t first, uint32_t count, uint64_t tag, uint32_t *index);
  bool charge(Batches &all, uint64_t bytes);
  void note_order(Batches &all, const CacheEntry *entries, uint32_t count);
  void empty(Batches &all, uint32_t index);
  Batches *make();

  Heap &heap_;
  std::atomic<Batches *> batches_{nullptr};  // made at the first put()
};

}  // namespace gmm
#endif
