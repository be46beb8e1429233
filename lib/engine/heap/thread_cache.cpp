// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_cache.h"

#include <cinttypes>

#include "engine/heap/cache_owner.h"

namespace gmm {
namespace {

constexpr uint32_t kBatch = 32;

inline void count_alloc(HeapCache &cache, uint64_t size) {
  add(cache.allocations, 1);
  add(cache.live_bytes, size);
}

// The last step of a cached alloc.
inline void give_out(HeapCache &cache, const CacheEntry &entry, uint64_t bytes, uint64_t requested) {
  add(cache.cached_bytes, 0 - bytes);
  entry.slot->store(requested, std::memory_order_relaxed);
  count_alloc(cache, requested);
  leave(cache);
}

// A block of the cache, when one fits; then the cache is left. Inside enter().
inline bool take_small_cached(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  Bin &bin = bins.bins[small_class(size)];
  if (__builtin_expect(bin.count == 0, 0)) return false;
  const CacheEntry entry = bin.entries[--bin.count];
  give_out(cache, entry, bin.block_bytes, requested);
  *out = entry.block;
  return true;
}

// The same for a large block, if the one that was freed last fits.
inline bool take_last_large(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
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

bool take_cached(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  if (size <= kMaxSmall) return take_small_cached(cache, bins, size, requested, out);
  for (uint32_t i = bins.large_count; i-- > 0;) {
    const LargeEntry large = bins.large[i];
    if (!fits(large.bytes, size)) continue;
    bins.large[i] = bins.large[--bins.large_count];
    give_out(cache, large.entry, large.bytes, requested);
    *out = large.entry.block;
    return true;
  }
  return false;
}

}  // namespace

// --- Alloc -------------------------------------------------------------------------------------------------

namespace {

// Without a cache, or past what is cached: straight from the heap. kGrow: it was asked without growth already.
Status central_alloc(Heap &heap, uint64_t size, uint64_t alignment, StreamKey key, Effort first, void **out,
                     std::atomic<uint64_t> **slot) {
  for (Effort effort : {Effort::kNoGrowth, Effort::kGrow}) {
    if (effort < first) continue;
    if (effort == Effort::kGrow) {
      const Core &core = heap.core();
      if (core.before_growth != nullptr) core.before_growth(core.before_growth_user);
      GMM_TRY(heap.drain_for_growth(current_thread_id()));
      heap.wait_to_move(size);
    }
    if (size <= kMaxSmall && alignment <= kGranule) {
      CacheEntry entry;
      uint32_t count = 0;
      GMM_TRY(heap.take_small(small_class(size), key, effort, 1, &entry, &count));
      if (count == 0) continue;
      *out = entry.block;
      *slot = entry.slot;
      return Status();
    }
    Span *span = nullptr;
    GMM_TRY(heap.take_large(size, alignment, key, effort, nullptr, 0, &span));
    if (span == nullptr) continue;
    *out = reinterpret_cast<void *>(span->begin());
    *slot = &span->slot(0);
    return Status();
  }
  return fail(GMM_ERROR_OUT_OF_MEMORY, "%" PRIu64 " bytes were asked for, and the heap could not grow.", size);
}

// None of the large blocks in the cache fits: they go back, so that they are merged before another run is split.
Status slow_alloc_large(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, uint64_t alignment,
                        void **out) {
  Heap &heap = *cache.heap;
  CacheEntry back[kLargeEntries];
  uint32_t count = take_large_entries(cache, bins, back);
  for (StreamBins *other = cache.all; other != nullptr; other = other->next) {
    CacheEntry others[kLargeEntries];
    if (other->large_count != 0) heap.put_back(others, take_large_entries(cache, *other, others), other->key);
  }
  const StreamKey key = bins.key;
  if (alignment <= kGranule && take_over_large(cache, bins, size)) {
    if (count != 0) heap.put_back(back, count, key);
    count = 0;
    if (take_cached(cache, bins, size, requested, out)) return Status();
  }
  leave(cache);
  Span *span = nullptr;
  GMM_TRY(heap.take_large(size, alignment, key, Effort::kNoGrowth, back, count, &span));
  if (__builtin_expect(span != nullptr, 1)) {
    *out = reinterpret_cast<void *>(span->begin());
    span->slots[0].store(requested, std::memory_order_relaxed);
  } else {
    std::atomic<uint64_t> *slot = nullptr;
    GMM_TRY(central_alloc(heap, size, alignment, key, Effort::kGrow, out, &slot));
    slot->store(requested, std::memory_order_relaxed);
  }
  if (__builtin_expect(!enter_at_once(cache), 0))
    while (!enter(cache)) wait_for_revoker(cache);
  count_alloc(cache, requested);
  leave(cache);
  return Status();
}

// The bin was empty. Fills it, outside of enter() so that a revoker never waits for a driver call.
__attribute__((noinline)) Status slow_alloc(Heap &heap, uint64_t size, uint64_t requested, uint64_t alignment,
                                            gmm_stream stream, void **out) {
  HeapCache *cache = find_cache(heap);
  if (cache == nullptr) cache = make_cache(heap);
  if (cache == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of this thread.");
  while (!enter(*cache)) wait_for_revoker(*cache);
  StreamBins *bins = bins_of(*cache, stream);
  if (bins != nullptr && size > kMaxSmall) return slow_alloc_large(*cache, *bins, size, requested, alignment, out);
  const bool cacheable = bins != nullptr && alignment <= kGranule;
  Bin *bin = cacheable ? stack_of(*cache, *bins, small_class(size)) : nullptr;
  if (bin != nullptr && take_over(*cache, *bins, *bin) && take_cached(*cache, *bins, size, requested, out))
    return Status();
  leave(*cache);
  if (bins == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a stream.");
  const StreamKey key = bins->key;
  CacheEntry batch[kBatch];
  uint32_t count = 0;
  if (bin != nullptr) {
    uint32_t wanted = bin->capacity / 2;
    if (wanted > kBatch) wanted = kBatch;
    GMM_TRY(heap.take_small(small_class(size), key, Effort::kNoGrowth, wanted, batch, &count));
  }
  std::atomic<uint64_t> *slot = nullptr;
  if (count == 0) {
    GMM_TRY(central_alloc(heap, size, alignment, key, Effort::kNoGrowth, out, &slot));
  } else {
    --count;
    *out = batch[count].block;
    slot = batch[count].slot;
  }
  slot->store(requested, std::memory_order_relaxed);
  while (!enter(*cache)) wait_for_revoker(*cache);
  count_alloc(*cache, requested);
  uint32_t kept = 0;
  // Memory that was paused meanwhile must not enter the cache.
  if (count != 0 && heap.fast.has_paused.load(std::memory_order_relaxed) == 0) {
    const uint64_t bytes = small_class_size(small_class(size));
    while (kept < count && bin->count < bin->capacity &&
           cache->cached_bytes.load(std::memory_order_relaxed) + bytes <= kCacheBudget) {
      add(cache->cached_bytes, bytes);
      bin->entries[bin->count++] = batch[kept++];
    }
  }
  leave(*cache);
  if (kept < count) heap.put_back(batch + kept, count - kept, key);
  return Status();
}

}  // namespace

// Another heap than last time, or another stream, or something needs attention.
__attribute__((noinline)) static Status find_and_alloc(Heap &heap, uint64_t size, uint64_t requested,
                                                       uint64_t alignment, gmm_stream stream, void **out) {
  HeapCache *cache = find_cache(heap);
  if (cache == nullptr) return slow_alloc(heap, size, requested, alignment, stream, out);
  while (!enter(*cache)) wait_for_revoker(*cache);
  StreamBins *bins = bins_of(*cache, stream);
  if (bins != nullptr && take_cached(*cache, *bins, size, requested, out)) return Status();
  leave(*cache);
  return slow_alloc(heap, size, requested, alignment, stream, out);
}

// Apart, so that the common path has one size only.
__attribute__((noinline)) static Status aligned_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream,
                                                      void **out) {
  if (alignment > kGranule) return slow_alloc(heap, size, size, alignment, stream, out);
  // The class of a multiple of the alignment has aligned blocks, as slabs start at granules.
  // Beyond a granule the heap places a run of just the size.
  return find_and_alloc(heap, (size + alignment - 1) & ~(alignment - 1), size, alignment, stream, out);
}

// The large block that was freed last does not fit. Inside enter().
__attribute__((noinline)) static Status alloc_other_large(HeapCache &cache, StreamBins &bins, uint64_t size,
                                                          void **out) {
  if (take_cached(cache, bins, size, size, out)) return Status();
  return slow_alloc_large(cache, bins, size, size, kUnit, out);
}

Status cached_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out) {
  if (__builtin_expect(alignment > kUnit, 0)) return aligned_alloc(heap, size, alignment, stream, out);
  // A serial is never used again, so the cache of a heap that ended is not found.
  if (__builtin_expect(t_last.serial != heap.fast.serial, 0))
    return find_and_alloc(heap, size, size, alignment, stream, out);
  HeapCache *cache = t_last.cache;
  const bool entered = enter_at_once(*cache);
  StreamBins *bins = cache->current;
  if (__builtin_expect(!entered || bins == nullptr || bins->key.stream != stream, 0)) {
    leave(*cache);
    return find_and_alloc(heap, size, size, alignment, stream, out);
  }
  // Calls stand last only, so that no register is saved for them.
  if (size <= kMaxSmall) {
    if (__builtin_expect(take_small_cached(*cache, *bins, size, size, out), 1)) return Status();
    leave(*cache);
    return slow_alloc(heap, size, size, alignment, stream, out);
  }
  if (__builtin_expect(take_last_large(*cache, *bins, size, size, out), 1)) return Status();
  return alloc_other_large(*cache, *bins, size, out);
}

bool alloc_at_once(Heap &heap, uint64_t size, gmm_stream stream, void **out) {
  HeapCache *cache = t_last.serial == heap.fast.serial ? t_last.cache : find_cache(heap);
  if (cache == nullptr) return false;
  if (enter(*cache)) {
    StreamBins *bins = cache->current;
    // bins_of() would make those of a new stream.
    if (bins == nullptr || bins->key.stream != stream) {
      bins = cache->all;
      while (bins != nullptr && bins->key.stream != stream) bins = bins->next;
      if (bins != nullptr) cache->current = bins;
    }
    if (bins != nullptr && take_cached(*cache, *bins, size, size, out)) return true;
  }
  leave(*cache);
  return false;
}

Status dedicated_alloc(Heap &heap, uint64_t size, void **out) {
  HeapCache *cache = find_cache(heap);
  if (cache == nullptr) cache = make_cache(heap);
  if (cache == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of this thread.");
  Span *span = nullptr;
  GMM_TRY(heap.take_dedicated(size, &span));
  span->slot(0).store(size, std::memory_order_relaxed);
  while (!enter(*cache)) wait_for_revoker(*cache);
  count_alloc(*cache, size);
  leave(*cache);
  *out = reinterpret_cast<void *>(span->begin());
  return Status();
}

// --- Free --------------------------------------------------------------------------------------------------

namespace {

__attribute__((noinline, cold)) Status free_error(Core &core, const Span *span, void *block) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  if (span != nullptr && span->live() && address >= span->begin() && address < span->end()) {
    Span *live = const_cast<Span *>(span);
    const uint32_t index = live->index_of(address);
    const uintptr_t start = live->block(index);
    if (index < (live->is_slab_object ? live->block_count.load(std::memory_order_relaxed) : 1) &&
        live->slot(index).load(std::memory_order_relaxed) != 0)
      return fail(GMM_ERROR_INTERIOR_POINTER,
                  "gmm_free(%p): the address lies %" PRIu64 " bytes inside a block; free the block's start, %p.", block,
                  static_cast<uint64_t>(address - start), reinterpret_cast<void *>(start));
    return fail(GMM_ERROR_ALREADY_FREED, "gmm_free(%p): the block was freed before.", block);
  }
  if (core.page_map.find_extent(block) != nullptr)
    return fail(GMM_ERROR_ALREADY_FREED,
                "gmm_free(%p): the address lies in memory of gmm, but in no live block; it was freed before.", block);
  return fail(GMM_ERROR_UNKNOWN_POINTER,
              "gmm_free(%p): this context did not give out the address; pass only what gmm_alloc() gave.", block);
}

// The block is checked and its slot is 0 already; `asked` are its bytes. kept: the heap keeps it aside, only count it.
__attribute__((noinline)) Status slow_free(Heap &heap, Span *span, void *block, std::atomic<uint64_t> *slot,
                                           uint64_t requested, gmm_stream stream, bool kept) {
  HeapCache *cache = find_cache(heap);
  if (cache == nullptr) cache = make_cache(heap);
  const StreamKey key{stream == GMM_STREAM_LEGACY ? GMM_STREAM_DEFAULT : stream,
                      stream == GMM_STREAM_PER_THREAD ? current_thread_id() : 0};
  const CacheEntry entry{block, slot};
  if (cache == nullptr) {
    // No memory for this thread's cache: count among the ended ones.
    LockGuard guard(heap.caches_mutex);
    heap.ended.live_bytes -= requested;
    heap.ended.frees += 1;
    if (!kept) heap.put_back(&entry, 1, key);
    return Status();
  }
  while (!enter(*cache)) wait_for_revoker(*cache);
  add(cache->live_bytes, 0 - requested);
  add(cache->frees, 1);
  const uint64_t bytes = span->block_bytes();
  bool cached = false;
  CacheEntry back[kLargeEntries];
  uint32_t back_count = 0;
  if (!kept && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 && bytes <= kMaxCached &&
      !span->region->dedicated) {
    if (cache->cached_bytes.load(std::memory_order_relaxed) + bytes > kCacheBudget) empty_cache(*cache, true, nullptr);
    StreamBins *bins = bins_of(*cache, stream);
    if (bins != nullptr && !span->is_slab_object) {
      if (bins->large_count == bins->large_capacity) {
        if (!hand_over_large(*cache, *bins)) back_count = take_large_entries(*cache, *bins, back);
        heap.transfers.fetch_after(entry.slot, bins->large_capacity);
      }
      bins->large[bins->large_count++] = LargeEntry{entry, bytes};
      cached = true;
    } else if (bins != nullptr) {
      Bin *bin = stack_of(*cache, *bins, span->class_index);
      if (bin != nullptr && bin->count == bin->capacity) spill(*cache, *bins, *bin, bytes);
      if (bin != nullptr) bin->entries[bin->count++] = entry;
      cached = bin != nullptr;
    }
    if (cached) add(cache->cached_bytes, bytes);
  }
  leave(*cache);
  if (back_count != 0) heap.put_back(back, back_count, key);
  if (!cached && !kept) heap.put_back(&entry, 1, key);
  return Status();
}

}  // namespace

namespace {

// Not on the fast path: other streams use the block, the thread has no room for it, or used another heap last.
__attribute__((noinline)) Status uncached_free(Heap &heap, Span *span, void *block, std::atomic<uint64_t> *slot,
                                               uint64_t requested, gmm_stream stream) {
  bool kept = false;
  if ((requested & kUsedElsewhere) != 0)
    GMM_TRY(heap.order_after_uses(CacheEntry{block, slot}, StreamKey{stream, current_thread_id()}, &kept));
  slot->store(0, std::memory_order_relaxed);
  return slow_free(heap, span, block, slot, requested & ~kUsedElsewhere, stream, kept);
}

// Where a free block goes. False: there is no room.
inline bool keep(StreamBins &bins, const Span &span, const CacheEntry &entry, uint64_t bytes) {
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

}  // namespace

// kAtOnce: GMM_NOT_READY instead of everything that is not the fast path.
template <bool kAtOnce>
static inline __attribute__((always_inline)) Status free_block(Core &core, void *block, gmm_stream stream) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  Span *span = core.page_map.find(block);
  if (__builtin_expect(span == nullptr, 0)) return kAtOnce ? Status(GMM_NOT_READY) : free_error(core, span, block);
  const uint64_t offset = address - span->begin();
  uint64_t bytes = span->block_size.load(std::memory_order_relaxed);
  uint32_t index = 0;
  if (bytes != 0) {
    // A block of a slab starts where its number says; of an address outside of the slab no number says so.
    index = static_cast<uint32_t>((offset / kUnit * span->reciprocal.load(std::memory_order_relaxed)) >> 24);
    if (__builtin_expect(index * bytes != offset || index >= span->block_count.load(std::memory_order_relaxed), 0))
      return kAtOnce ? Status(GMM_NOT_READY) : free_error(core, span, block);
  } else {
    bytes = span->bytes();
    if (__builtin_expect(offset != 0 || !span->is(SpanState::kLarge), 0))
      return kAtOnce ? Status(GMM_NOT_READY) : free_error(core, span, block);
  }
  std::atomic<uint64_t> &slot = span->slot(index);
  const uint64_t requested = slot.load(std::memory_order_relaxed);
  if (__builtin_expect(requested == 0, 0)) return kAtOnce ? Status(GMM_NOT_READY) : free_error(core, span, block);
  Heap &heap = *span->heap.load(std::memory_order_relaxed);
  if (kAtOnce) {
    if ((requested & kUsedElsewhere) != 0) return Status(GMM_NOT_READY);
    if (t_last.serial != heap.fast.serial && find_cache(heap) == nullptr) return Status(GMM_NOT_READY);
  } else if (__builtin_expect(t_last.serial != heap.fast.serial || (requested & kUsedElsewhere) != 0, 0)) {
    return uncached_free(heap, span, block, &slot, requested, stream);
  }
  HeapCache *cache = t_last.cache;
  const bool entered = enter_at_once(*cache);
  StreamBins *bins = cache->current;
  const uint64_t cached = cache->cached_bytes.load(std::memory_order_relaxed) + bytes;
  if (__builtin_expect(entered && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 && bins != nullptr &&
                           bins->key.stream == stream && cached <= kCacheBudget &&
                           keep(*bins, *span, CacheEntry{block, &slot}, bytes),
                       1)) {
    slot.store(0, std::memory_order_relaxed);
    cache->cached_bytes.store(cached, std::memory_order_relaxed);
    add(cache->live_bytes, 0 - requested);
    add(cache->frees, 1);
    leave(*cache);
    return Status();
  }
  leave(*cache);
  return kAtOnce ? Status(GMM_NOT_READY) : uncached_free(heap, span, block, &slot, requested, stream);
}

Status cached_free(Core &core, void *block, gmm_stream stream) { return free_block<false>(core, block, stream); }

bool free_at_once(Core &core, void *block, gmm_stream stream) {
  return free_block<true>(core, block, stream).code() == GMM_OK;
}

}  // namespace gmm
