// SPDX-License-Identifier: Apache-2.0
// The caches of one heap: those of its threads (engine/heap/thread_cache.h), and the full bins between them
// (engine/heap/transfer_cache.h).
//
// Owns: the list of thread caches, the transfer cache, the counters of caches that ended, and the peak of live bytes.
// Locks: `mutex`, before the heap's mutex. A thread that empties the cache of another one holds it, so an owner that
// met a revocation waits for it. A thread that changes the list of caches holds list_mutex_ too. totals() holds that
// one only, so it waits for no operation.
// Callers: Heap, which owns one, the thread caches, and the end of a thread.
#ifndef GMM_ENGINE_HEAP_HEAP_CACHES_H
#define GMM_ENGINE_HEAP_HEAP_CACHES_H

#include <atomic>
#include <cstdint>

#include "base/list.h"
#include "base/lock.h"
#include "base/vector.h"
#include "engine/heap/transfer_cache.h"
#include "engine/space/span.h"

namespace gmm {

class Heap;
struct HeapCache;

struct HeapTotals {
  uint64_t live_bytes = 0, live_blocks = 0, allocations = 0, frees = 0;
  uint64_t forgotten = 0;  // blocks that a reset freed
  uint64_t held = 0, peak_held = 0, peak_live = 0, paused = 0, foreign = 0, extents = 0, free_bytes = 0, failures = 0;
};

class HeapCaches : NoCopy {
 public:
  explicit HeapCaches(Heap &heap) : transfers(heap), heap_(heap) {}

  // A thread made its cache.
  void add(HeapCache *cache);
  // The thread of a cache ends, and calls this: the cache is emptied and ends.
  void end_of_thread(HeapCache &cache);
  // Ends all caches. No other thread uses the heap.
  void end_all();
  // Returns when no thread empties caches any more.
  void wait_for_drain() { LockGuard guard(mutex); }

  // Empties every cache into the heap, those of other threads too. Blocks that per-thread streams of other threads
  // freed go to the list, as far as there is host memory, and the caches' bookkeeping of streams ends; with NULL both
  // stay.
  void drain(Vector<CacheEntry> *per_thread);
  // A trace began: no thread that looked at the gate before takes a fast path from here on.
  void end_fast_paths();
  // A stream is about to go: what every cache has of it goes to the heap, and its bookkeeping ends.
  void forget_stream(gmm_stream stream);
  // A look before the heap grows: empties the transfer cache, which costs no barrier, and notes the peak. Returns how
  // many caches of other threads hold free blocks. *quiet: the bytes of those whose threads did nothing with the heap
  // at several looks.
  uint32_t drain_transfers(uint64_t thread, uint64_t *quiet);
  // Empties these, except what their per-thread streams freed.
  void drain_quiet();
  // Empties the caches of threads that did nothing with the heap for the age, except what their per-thread streams
  // freed. Returns how many bytes the heap may release since.
  uint64_t drain_idle(uint64_t now, uint64_t age);

  // The sums of the counters. The caches are read one after the other: a block that one thread allocated and another
  // one freed may be seen as freed only, so a sum that falls below 0 is taken for 0.
  HeapTotals totals();
  // Adds live bytes, allocations, frees and failures that no thread's cache counts: of a thread without host memory for
  // one, and of a heap that ends and served this one (engine/heap/capture.h).
  void count(const HeapTotals &calls);
  // Heap::reset() frees every live block. The caches are empty, and no other thread is inside.
  void forget_live();

  bool empty() const { return list_.empty(); }
  // Takes the mutex. fn(HeapCache &).
  template <typename Fn>
  void for_each(Fn fn) {
    LockGuard guard(mutex);
    for_each_locked(fn);
  }

  Mutex mutex{LockRank::kHeapCaches};
  TransferCache transfers;

 private:
  template <typename Fn>
  void for_each_locked(Fn fn) {
    for (HeapCache *cache = list_.front(); cache != nullptr; cache = list_.next(cache)) fn(*cache);
  }
  template <typename Choose, typename Fn>
  void revoke(Choose choose, Fn fn);
  template <typename Clock>
  uint64_t drain_by(Clock clock, uint64_t now, uint64_t age);
  void end(HeapCache &cache);

  Heap &heap_;
  Mutex list_mutex_{LockRank::kHeapCachesList};
  List<HeapCache, HeapCaches> list_;
  HeapTotals ended_;  // guarded by list_mutex_: of caches that ended
  // The clock of drain_quiet(), with `mutex` held. A heap may grow often while a thread that works makes no call.
  uint64_t growths_ = 0;
  static constexpr uint64_t kQuietGrowths = 2;
};

}  // namespace gmm
#endif
