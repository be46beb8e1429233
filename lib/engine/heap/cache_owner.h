// SPDX-License-Identifier: Apache-2.0
// What a thread does with its own caches: entering them, finding and making them.
#ifndef GMM_ENGINE_HEAP_CACHE_OWNER_H
#define GMM_ENGINE_HEAP_CACHE_OWNER_H

#include "engine/heap/cache_state.h"

namespace gmm {

// Whether the owner may go on; leave() follows either way. The fast paths call nothing that comes back, so that they
// save no registers: what needs attention is for the slow paths, which use enter().
inline bool enter_at_once(HeapCache &cache) {
  if constexpr (kThreadSanitizer) {
    cache.busy.exchange(1, std::memory_order_seq_cst);
    return cache.attention.load(std::memory_order_seq_cst) == 0;
  }
  cache.busy.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return cache.attention.load(std::memory_order_acquire) == 0;
}

inline void leave(HeapCache &cache) { cache.busy.store(0, std::memory_order_release); }

// For the slow paths: false when another thread is emptying the cache.
bool enter(HeapCache &cache);
// The owner met a revocation: leaves, and waits until it is over.
void wait_for_revoker(HeapCache &cache);

inline void add(std::atomic<uint64_t> &counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

// A large block may be larger than what is asked for by less than a granule, or by this much.
inline bool fits(uint64_t bytes, uint64_t size) {
  return bytes >= size && (bytes - size < kGranule || bytes - size <= bytes / 64);
}

// The calling thread's cache of a heap, NULL when it has none; it becomes the one that the fast paths find.
HeapCache *find_cache(const Heap &heap);
// NULL without host memory.
HeapCache *make_cache(Heap &heap);
// The bins of a stream, which become the current ones; NULL without host memory. Inside enter().
StreamBins *bins_of(HeapCache &cache, gmm_stream stream);
// The stack of a small class with room for its blocks; NULL without host memory. Inside enter().
Bin *stack_of(HeapCache &cache, StreamBins &bins, uint32_t index);
// Bytes of a stack's array.
uint64_t stack_room(uint64_t block_bytes);
// All large blocks of a stream out of the cache; their number, up to kLargeEntries. Inside enter(), or while the owner is kept out.
uint32_t take_large_entries(HeapCache &cache, StreamBins &bins, CacheEntry *out);

// Room in a full stack: where this thread frees what others allocate it grows or goes to whoever wants such blocks, else half of it goes to the heap. Inside enter(), as the next ones.
void spill(HeapCache &cache, StreamBins &bins, Bin &bin, uint64_t block_bytes);
// What other threads freed on this stream becomes the empty stack; false when there is nothing, or memory is paused.
bool take_over(HeapCache &cache, const StreamBins &bins, Bin &bin);
// The same for large blocks, if all are of one size; false: there is no room.
bool hand_over_large(HeapCache &cache, StreamBins &bins);
bool take_over_large(HeapCache &cache, StreamBins &bins, uint64_t size);

}  // namespace gmm
#endif
