// SPDX-License-Identifier: Apache-2.0
// Thread caches: the common alloc and free touch no lock, no atomic read-modify-write and no driver call.
//
// A thread has, for each heap it used, a HeapCache, and in it, for each stream, a stack of free blocks a class. A block goes into the
// cache of the thread and stream that freed it; full stacks go back to the heap by halves, empty ones are filled
// by batches. A thread that frees what others allocate gives full stacks to them as they are (engine/heap/transfer_cache.h). Of large blocks a
// stream keeps the last few.
//
// Another thread may empty a cache (trim, out of memory, pause): it sets `revoked`, makes every running thread pass a
// full barrier (membarrier, so that the owner needs none), and waits until the owner is not `busy`. This is Dekker's mutual
// exclusion with the cost on the rare side, as in biased locking. Where membarrier is missing, or under the thread
// sanitizer, which does not know it, the owner pays for a fence.
#ifndef GMM_ENGINE_HEAP_THREAD_CACHE_H
#define GMM_ENGINE_HEAP_THREAD_CACHE_H

#include <atomic>
#include <cstdint>

#include "base/barrier.h"
#include "engine/heap/heap.h"
#include "engine/heap/thread_state.h"

namespace gmm {

// What a thread's cache of one heap holds at most, in bytes. include/gmm/memory.h promises it.
inline constexpr uint64_t kCacheBudget = uint64_t{128} << 20;

struct Bin {
  CacheEntry *entries;
  uint16_t count;
  uint16_t capacity;
  uint32_t block_bytes;
};

// Large blocks that were freed last. They are few, and go back to the heap as soon as none of them fits, so that what is free
// is merged before another run is split for want of it.
inline constexpr uint32_t kFewLargeEntries = 8,
                          kLargeEntries = 32;  // the latter at most, where blocks go from thread to thread
struct LargeEntry {
  CacheEntry entry;
  uint64_t bytes;
};

struct alignas(64) StreamBins {
  StreamKey key;
  StreamBins *next;
  uint32_t large_count;
  uint32_t large_capacity;
  LargeEntry large[kLargeEntries];
  Bin bins[kSmallClasses];
};

// Why the owner may not go on as usual.
inline constexpr uint32_t kRevoked = 1;     // another thread is emptying the cache
inline constexpr uint32_t kNeedsFence = 2;  // membarrier is missing

// Aligned, as are the stacks: what one thread writes at every call is in no line that another one uses.
struct alignas(64) HeapCache : Link<HeapCaches> {
  std::atomic<uint32_t> busy{0};
  std::atomic<uint32_t> attention{0};
  StreamBins *current = nullptr;  // the stream used last
  StreamBins *all = nullptr;
  // Written by the owner only, read by totals().
  std::atomic<uint64_t> live_bytes{0}, allocations{0}, frees{0}, cached_bytes{0};
  Heap *heap = nullptr;
  uint64_t thread_id = 0;
  // Of drain_idle_caches(), under caches_mutex: the calls counted when it looked last, since when they are the same, and
  // whether the cache was emptied since.
  uint64_t seen_calls = 0, idle_since = 0;
  bool drained = false;
};

// Allocates `size` bytes, 1 to kMaxSize. `alignment` up to kGranule may be served from the caches. NULL status codes other than OK and no
// recovery: the context does that. Effort::kNoGrowth is for its own tries.
Status cached_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out);
// A block with a driver allocation of its own, past the caches.
Status dedicated_alloc(Heap &heap, uint64_t size, void **out);
// Frees a block of this page map. The errors of gmm_free().
Status cached_free(Core &core, void *block, gmm_stream stream);

// The same as far as that takes no lock, no wait, no driver call and no memory of the host; false: nothing happened.
bool alloc_at_once(Heap &heap, uint64_t size, gmm_stream stream, void **out);
bool free_at_once(Core &core, void *block, gmm_stream stream);

// Ends all caches of a heap; no other thread uses it.
void end_caches(Heap &heap);
// With the heap's caches_mutex taken inside.
template <typename Fn>
void for_each_cache(Heap &heap, Fn fn) {
  LockGuard guard(heap.caches_mutex);
  for (HeapCache *cache = heap.caches.front(); cache != nullptr; cache = heap.caches.next(cache)) fn(*cache);
}

}  // namespace gmm
#endif
