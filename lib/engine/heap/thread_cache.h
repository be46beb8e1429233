// SPDX-License-Identifier: Apache-2.0
// Thread caches: the common alloc and free touch no lock, no atomic read-modify-write and no driver call.
//
// A thread has a HeapCache for each heap that it used. A HeapCache has StreamBins for each stream, and those have a
// bin, which is a stack of free blocks, for each size class, and a short list of large blocks. A free puts the block
// into the cache of the thread and stream that freed it. An alloc takes it from there.
//
// A full bin returns half of its blocks to the heap, and an empty bin is filled by a batch. A thread that frees what
// other threads allocate gives full bins to them as they are (engine/heap/transfer_cache.h).
//
// Locks: the owner takes none. Another thread may empty a cache (trim, out of memory, pause). It holds
// HeapCaches::mutex, sets kRevoked, makes every running thread pass a barrier (base/barrier.h), and waits until the
// owner is not `busy`. An owner that meets kRevoked leaves, and waits for that mutex.
//
// A thread outlives heaps, and heaps outlive threads. So it notes its cache by the heap's slot and serial in a registry
// of the process (base/registry.h). When it ends, it returns every cache whose heap still lives.
//
// Called by api/ (the functions at the end), by HeapCaches (engine/heap/heap_caches.h), which knows all caches of a
// heap, and by the end of a thread.
#ifndef GMM_ENGINE_HEAP_THREAD_CACHE_H
#define GMM_ENGINE_HEAP_THREAD_CACHE_H

#include <atomic>
#include <cstdint>

#include "base/barrier.h"
#include "base/thread_record.h"
#include "base/vector.h"
#include "engine/heap/heap.h"

namespace gmm {

// The most bytes that a thread's cache of one heap holds. include/gmm/memory.h promises it.
inline constexpr uint64_t kCacheBudget = uint64_t{128} << 20;

// A stack of free blocks of one small class.
struct Bin {
  CacheEntry *entries;
  uint16_t count;
  uint16_t capacity;
  uint32_t block_bytes;
};

// The large blocks that were freed last. They are few. They return to the heap as soon as none of them fits, so that
// the heap merges what is free before it splits another run. Caches of large blocks by size class were slower, and left
// memory unmerged for long. While a heap grows they pass the caches by (Heap::passes_caches()).
inline constexpr uint32_t kFewLargeEntries = 8;
// The most that a stream holds where blocks go from thread to thread.
inline constexpr uint32_t kLargeEntries = 32;
struct LargeEntry {
  CacheEntry entry;
  uint64_t bytes;
};

// The free blocks of one stream.
struct alignas(64) StreamBins {
  StreamKey key;
  StreamBins *next;
  uint32_t large_count;
  uint32_t large_capacity;  // 0: they pass by
  LargeEntry large[kLargeEntries];
  Bin bins[kSmallClasses];
};

// Bits of HeapCache::attention: why try_enter() fails.
inline constexpr uint32_t kRevoked = 1;     // another thread is emptying the cache
inline constexpr uint32_t kNeedsFence = 2;  // the system lacks the barrier, so owners need a fence
inline constexpr uint32_t kTraceBegan = 4;  // the owner may have looked at the gate before: it takes no fast path once

// One thread's cache of one heap. It is aligned, as the bins are: a cache line that one thread writes at every call
// holds nothing of another thread. Bookkeeping of two threads in one cache line halved the throughput of 8 threads.
struct alignas(64) HeapCache : Link<HeapCaches> {
  std::atomic<uint32_t> busy{0};
  std::atomic<uint32_t> attention{0};
  // The stream used last. The fast paths load it before they know whether they entered, and use it only if so.
  std::atomic<StreamBins *> current{nullptr};
  StreamBins *all = nullptr;
  // The owner alone writes these counters. HeapCaches reads them.
  std::atomic<uint64_t> live_bytes{0}, allocations{0}, frees{0}, cached_bytes{0};
  uint64_t calls() const { return allocations.load(std::memory_order_relaxed) + frees.load(std::memory_order_relaxed); }
  Heap *heap = nullptr;
  uint64_t thread_id = 0;
  // Whether the thread does something with the heap, by a clock, under HeapCaches::mutex.
  struct Idleness {
    uint64_t calls = 0, since = 0;  // counted at the last look; when they were first so many
    bool drained = false;           // the cache was emptied since
    // Whether the calls are the same for an age, with something left to empty.
    bool look(uint64_t counted, uint64_t now, uint64_t age) {
      if (counted != calls) *this = Idleness{counted, now, false};
      return !drained && now - since >= age;
    }
  } by_time, by_growths;
  // How often bins ended: an owner that left the cache asks whether those that it found are still there.
  uint64_t ended_bins = 0;

  // Gives a heap its slot and serial. NOT_SUPPORTED when all slots are taken.
  static Status begin_heap(Heap *heap);
  // Returns when no ending thread returns its cache to the heap any more.
  static void end_heap(Heap *heap);
  // The calling thread's cache of a heap; NULL when it has none. It becomes the one that the fast paths find.
  static HeapCache *find(const Heap &heap);
  // Makes the cache where there is none. NULL without host memory, or where the thread may not allocate.
  static HeapCache *find_or_make(Heap &heap);

  // --- By the owner -------------------------------------------------------------------------------------------------
  // leave() follows each of these, also one that returned false.
  // False: the cache needs attention. It is a plain store and load, so that the fast paths call nothing.
  bool try_enter() {
    if constexpr (kThreadSanitizer) {
      busy.exchange(1, std::memory_order_seq_cst);
      return attention.load(std::memory_order_seq_cst) == 0;
    }
    busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // pass_barrier() of the revoker is its partner
    return attention.load(std::memory_order_acquire) == 0;
  }
  // False: another thread is emptying the cache.
  bool enter_unless_revoked();
  // False: that, or a trace began since the last call.
  bool enter_now() { return enter_unless_revoked() && !notice_trace(); }
  // Waits while another thread empties the cache.
  void enter() {
    if (__builtin_expect(!try_enter(), 0)) enter_after_revoker();
  }
  void leave() { busy.store(0, std::memory_order_release); }

  // The rest is called inside enter(). The log may hear of what goes back to the heap, and calls the program. So who
  // calls spill() or empty() has a MessagesWait that ends after leave().
  // The bins of a stream, which become the current ones; NULL without host memory.
  StreamBins *bins_of(gmm_stream stream);
  StreamBins *known_bins_of(gmm_stream stream);  // NULL: the thread never used it
  // The bin of a small class with an array for its blocks; NULL without host memory.
  Bin *bin_of(StreamBins &bins, uint32_t class_index);
  // Makes room in a full bin. Where this thread frees what others allocate, the bin grows or goes to the transfer
  // cache; else its older half goes to the heap.
  void spill(StreamBins &bins, Bin &bin, uint64_t block_bytes);
  // Puts blocks of the heap into a bin, as far as there is room and no memory is paused; returns how many.
  uint32_t fill(Bin &bin, const CacheEntry *entries, uint32_t count);
  // Fills an empty bin with what other threads freed on this stream. False: there is nothing, or memory is paused.
  bool take_over(const StreamBins &bins, Bin &bin);
  // Hands over and takes over large blocks. Blocks that are not all of one size are not handed over; false: there is no
  // room.
  bool hand_over_large(StreamBins &bins);
  bool take_over_large(StreamBins &bins, uint64_t size);
  // Whether large blocks of the stream may be cached. They may not while Heap::passes_caches(), from the stream's first
  // refill on; this ends it.
  bool admits_large(StreamBins &bins);
  // Removes all large blocks of a stream, and returns their number, up to kLargeEntries.
  uint32_t remove_large(StreamBins &bins, CacheEntry *out);
  // Everything in the cache goes to the heap.
  void empty();

  // --- By another thread, with HeapCaches::mutex held ----------------------------------------------------------------
  // Several caches are revoked first, then one pass_barrier() serves them all, then each is emptied.
  void revoke() { attention.fetch_or(kRevoked, std::memory_order_seq_cst); }
  bool is_revoked() const { return (attention.load(std::memory_order_relaxed) & kRevoked) != 0; }
  // Waits until the owner left, empties the cache, and lets the owner enter again. Blocks that the owner's per-thread
  // stream freed go to the list, as far as there is host memory; with NULL they stay. end_bins: the bins end, too, as
  // far as they are empty then.
  void empty_revoked(Vector<CacheEntry> *per_thread, bool end_bins);
  // Empties and ends the bins of one stream.
  void forget_revoked(gmm_stream stream);
  // Frees the bins. They are empty.
  void free_bins();

 private:
  __attribute__((noinline)) void enter_after_revoker();
  bool notice_trace();
  bool may_take_over(uint64_t bytes) const;
  bool frees_for_others() const;
  void empty_except(bool keep_per_thread, Vector<CacheEntry> *per_thread);
  uint64_t put_back_all(StreamBins &bins);
  // Unlinks and frees the bins that fn(StreamBins &) is true for. They are empty.
  template <typename Fn>
  void end_bins_if(Fn fn);
};

// Allocates `size` bytes, 1 to kMaxSize. The caches may serve an `alignment` of up to kGranule. Returns errors
// unrecovered; the context retries.
Status cached_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out);
// cached_alloc() after a failed try of alloc_from_cache() (engine/heap/fast_path.h).
Status alloc_past_cache(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out);
// Allocates a block with a driver allocation of its own. It comes from no cache.
Status dedicated_alloc(Heap &heap, uint64_t size, void **out, const CommTraits *comm = nullptr, bool paused = false);
// Frees a block of this page map. Returns the errors of gmm_free().
Status cached_free(Core &core, void *block, gmm_stream stream);
// cached_free() after a failed try of free_into_cache() (engine/heap/fast_path.h).
Status free_past_cache(Core &core, void *block, gmm_stream stream);

// Allocate and free as far as that takes no wait, no driver call, no callback and no host memory: the heap's lock only
// if it is free. False: nothing happened.
bool try_alloc(Heap &heap, uint64_t size, gmm_stream stream, void **out);
bool try_free(Core &core, void *block, gmm_stream stream);

}  // namespace gmm
#endif
