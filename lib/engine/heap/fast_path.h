// SPDX-License-Identifier: Apache-2.0
// The fast paths: an alloc and a free that the thread's cache serves at once, without a lock, an atomic
// read-modify-write or a driver call.
//
// They call nothing. So a C function that begins with one, and hands everything else to a function that it calls last,
// saves no register: 46 of 262 instructions a pair were pushes, pops and copies for what came after.
//
// Called by api/ and by cached_alloc() and its kin (engine/heap/thread_cache.h), whose locks they share.
#ifndef GMM_ENGINE_HEAP_FAST_PATH_H
#define GMM_ENGINE_HEAP_FAST_PATH_H

#include "engine/heap/thread_cache.h"

namespace gmm {

// --- Steps, inside HeapCache::enter() -------------------------------------------------------------------------------

inline void add(std::atomic<uint64_t> &counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

inline void count_alloc(HeapCache &cache, uint64_t size) {
  add(cache.allocations, 1);
  add(cache.live_bytes, size);
}

inline void count_free(HeapCache &cache, uint64_t requested) {
  add(cache.live_bytes, 0 - requested);
  add(cache.frees, 1);
}

// Whether a large block serves a request: it may be larger by less than a granule, or by 1/64 of its bytes.
inline bool fits(uint64_t bytes, uint64_t size) {
  return bytes >= size && (bytes - size < kGranule || bytes - size <= bytes / 64);
}

// The last step of an alloc that the cache serves.
inline void give_out(HeapCache &cache, const CacheEntry &entry, uint64_t bytes, uint64_t requested) {
  add(cache.cached_bytes, 0 - bytes);
  entry.slot->store(requested, std::memory_order_relaxed);
  count_alloc(cache, requested);
  cache.leave();
}

// pop_small() and pop_large() take a block of the cache, if one fits, and then leave the cache. Inside enter().
inline bool pop_small(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  Bin &bin = bins.bins[small_class(size)];
  if (__builtin_expect(bin.count == 0, 0)) return false;
  const CacheEntry entry = bin.entries[--bin.count];
  give_out(cache, entry, bin.block_bytes, requested);
  *out = entry.block;
  return true;
}

// Looks only at the block that was freed last.
inline bool pop_large(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  const uint32_t count = bins.large_count;
  if (__builtin_expect(count == 0, 0)) return false;
  const LargeEntry &large = bins.large[count - 1];
  const uint64_t bytes = large.bytes;
  if (__builtin_expect(!fits(bytes, size), 0)) return false;
  *out = large.entry.block;
  bins.large_count = count - 1;
  give_out(cache, large.entry, bytes, requested);
  return true;
}

// Puts a free block where pop_small() and pop_large() find it. False: there is no room. Inside enter().
inline bool push(StreamBins &bins, const Span &span, const CacheEntry &entry, uint64_t bytes) {
  if (span.is_slab_object) {
    Bin &bin = bins.bins[span.class_index];
    if (__builtin_expect(bin.count == bin.capacity, 0)) return false;
    bin.entries[bin.count++] = entry;
    return true;
  }
  if (bins.large_count == bins.large_capacity || bytes > kMaxCached || span.region->dedicated) return false;
  bins.large[bins.large_count++] = LargeEntry{entry, bytes};
  return true;
}

// --- The start of a live block --------------------------------------------------------------------------------------

struct BlockStart {
  Span *span;
  std::atomic<uint64_t> *slot;
  uint64_t bytes;      // that the block takes
  uint64_t requested;  // the slot's value, with kUsedElsewhere
};

// False: no live block of the page map starts at the address.
inline __attribute__((always_inline)) bool find_start(const Core &core, const void *block, BlockStart *out) {
  Span *span = core.page_map.find(block);
  if (__builtin_expect(span == nullptr, 0)) return false;
  const uint64_t offset = reinterpret_cast<uintptr_t>(block) - span->begin();
  uint64_t bytes = span->block_size.load(std::memory_order_relaxed);
  uint32_t index = 0;
  if (bytes != 0) {
    // A block of a slab starts at its number times its size. No number gives an address outside of the slab.
    index = static_cast<uint32_t>((offset / kUnit * span->reciprocal.load(std::memory_order_relaxed)) >> 24);
    if (__builtin_expect(index * bytes != offset || index >= span->block_count.load(std::memory_order_relaxed), 0))
      return false;
  } else {
    bytes = span->bytes();
    if (__builtin_expect(offset != 0 || !span->is(SpanState::kLarge), 0)) return false;
  }
  std::atomic<uint64_t> &slot = span->slot(index);
  *out = BlockStart{span, &slot, bytes, slot.load(std::memory_order_relaxed)};
  return __builtin_expect(out->requested != 0, 1);
}

// push() of a live block, which is free then. False: there is no room, and nothing happened. Inside enter().
inline __attribute__((always_inline)) bool push_free(HeapCache &cache, StreamBins &bins, const BlockStart &found,
                                                     void *block) {
  const uint64_t cached = cache.cached_bytes.load(std::memory_order_relaxed) + found.bytes;
  if (__builtin_expect(cached > kCacheBudget || !push(bins, *found.span, CacheEntry{block, found.slot}, found.bytes),
                       0))
    return false;
  found.slot->store(0, std::memory_order_relaxed);
  cache.cached_bytes.store(cached, std::memory_order_relaxed);
  count_free(cache, found.requested);
  return true;
}

// --- The fast paths -------------------------------------------------------------------------------------------------

// `size` is 1 to kMaxSize. False: nothing happened, and alloc_past_cache() serves the request.
[[nodiscard]] inline __attribute__((always_inline)) bool alloc_from_cache(const Heap &heap, uint64_t size,
                                                                          gmm_stream stream, void **out) {
  const OwnMemo last;
  if (__builtin_expect(last.serial() != heap.fast.serial, 0)) return false;
  HeapCache &cache = *static_cast<HeapCache *>(last.value());
  if (__builtin_expect(cache.try_enter(), 1)) {
    StreamBins *bins = cache.current.load(std::memory_order_relaxed);
    if (__builtin_expect(bins != nullptr && bins->key.stream == stream, 1)) {
      const bool popped =
          size <= kMaxSmall ? pop_small(cache, *bins, size, size, out) : pop_large(cache, *bins, size, size, out);
      if (__builtin_expect(popped, 1)) return true;
    }
  }
  cache.leave();
  return false;
}

// False: nothing happened, and free_past_cache() frees the block or says what is wrong with it.
[[nodiscard]] inline __attribute__((always_inline)) bool free_into_cache(const Core &core, void *block,
                                                                         gmm_stream stream) {
  BlockStart found;
  if (__builtin_expect(!find_start(core, block, &found), 0)) return false;
  const Heap &heap = *found.span->heap.load(std::memory_order_relaxed);
  const OwnMemo last;
  if (__builtin_expect(last.serial() != heap.fast.serial || (found.requested & kUsedElsewhere) != 0, 0)) return false;
  HeapCache &cache = *static_cast<HeapCache *>(last.value());
  if (__builtin_expect(cache.try_enter() && heap.fast.has_paused.load(std::memory_order_relaxed) == 0, 1)) {
    StreamBins *bins = cache.current.load(std::memory_order_relaxed);
    if (__builtin_expect(bins != nullptr && bins->key.stream == stream && push_free(cache, *bins, found, block), 1)) {
      cache.leave();
      return true;
    }
  }
  cache.leave();
  return false;
}

}  // namespace gmm
#endif
