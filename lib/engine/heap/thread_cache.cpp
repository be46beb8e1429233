// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_cache.h"

#include <sched.h>

#include <cinttypes>

namespace gmm {
namespace {

inline void add(std::atomic<uint64_t> &counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

inline void count_alloc(HeapCache &cache, uint64_t size) {
  add(cache.allocations, 1);
  add(cache.live_bytes, size);
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

// The next three take a block of the cache, when one fits, and then leave the cache. Inside enter().
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

bool pop_any(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  if (size <= kMaxSmall) return pop_small(cache, bins, size, requested, out);
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

// What the fast paths call last, each for its cause; none of them is inlined, so that the fast paths save no register.
__attribute__((noinline)) Status alloc_aligned(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream,
                                               void **out);
__attribute__((noinline)) Status switch_cache_and_alloc(Heap &heap, uint64_t size, uint64_t requested,
                                                        uint64_t alignment, gmm_stream stream, void **out);
__attribute__((noinline)) Status alloc_from_heap(Heap &heap, uint64_t size, uint64_t requested, uint64_t alignment,
                                                 gmm_stream stream, void **out);
__attribute__((noinline)) Status alloc_other_large(HeapCache &cache, StreamBins &bins, uint64_t size, void **out);
__attribute__((noinline)) Status order_uses_and_free(Heap &heap, Span *span, void *block, std::atomic<uint64_t> *slot,
                                                     uint64_t requested, gmm_stream stream);
__attribute__((noinline)) Status free_error(Core &core, const Span *span, void *block);

}  // namespace

// --- The fast paths --------------------------------------------------------------------------------------------------

Status cached_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out) {
  if (__builtin_expect(alignment > kUnit, 0)) return alloc_aligned(heap, size, alignment, stream, out);
  if (__builtin_expect(t_last.serial != heap.fast.serial, 0))
    return switch_cache_and_alloc(heap, size, size, alignment, stream, out);
  HeapCache *cache = t_last.cache;
  const bool entered = cache->try_enter();
  StreamBins *bins = cache->current;
  if (__builtin_expect(!entered || bins == nullptr || bins->key.stream != stream, 0)) {
    cache->leave();
    return switch_cache_and_alloc(heap, size, size, alignment, stream, out);
  }
  // Calls stand last only, so that no register is saved for them.
  if (size <= kMaxSmall) {
    if (__builtin_expect(pop_small(*cache, *bins, size, size, out), 1)) return Status();
    cache->leave();
    return alloc_from_heap(heap, size, size, alignment, stream, out);
  }
  if (__builtin_expect(pop_large(*cache, *bins, size, size, out), 1)) return Status();
  return alloc_other_large(*cache, *bins, size, out);
}

// kTry: everything that is not the fast path returns GMM_ERROR_NOT_READY.
template <bool kTry>
static inline __attribute__((always_inline)) Status free_block(Core &core, void *block, gmm_stream stream) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  Span *span = core.page_map.find(block);
  if (__builtin_expect(span == nullptr, 0)) return kTry ? Status(GMM_ERROR_NOT_READY) : free_error(core, span, block);
  const uint64_t offset = address - span->begin();
  uint64_t bytes = span->block_size.load(std::memory_order_relaxed);
  uint32_t index = 0;
  if (bytes != 0) {
    // A block of a slab starts where its number says. No number says so of an address outside of the slab.
    index = static_cast<uint32_t>((offset / kUnit * span->reciprocal.load(std::memory_order_relaxed)) >> 24);
    if (__builtin_expect(index * bytes != offset || index >= span->block_count.load(std::memory_order_relaxed), 0))
      return kTry ? Status(GMM_ERROR_NOT_READY) : free_error(core, span, block);
  } else {
    bytes = span->bytes();
    if (__builtin_expect(offset != 0 || !span->is(SpanState::kLarge), 0))
      return kTry ? Status(GMM_ERROR_NOT_READY) : free_error(core, span, block);
  }
  std::atomic<uint64_t> &slot = span->slot(index);
  const uint64_t requested = slot.load(std::memory_order_relaxed);
  if (__builtin_expect(requested == 0, 0)) return kTry ? Status(GMM_ERROR_NOT_READY) : free_error(core, span, block);
  Heap &heap = *span->heap.load(std::memory_order_relaxed);
  if (kTry) {
    if ((requested & kUsedElsewhere) != 0) return Status(GMM_ERROR_NOT_READY);
    if (t_last.serial != heap.fast.serial && HeapCache::find(heap) == nullptr) return Status(GMM_ERROR_NOT_READY);
  } else if (__builtin_expect(t_last.serial != heap.fast.serial || (requested & kUsedElsewhere) != 0, 0)) {
    return order_uses_and_free(heap, span, block, &slot, requested, stream);
  }
  HeapCache *cache = t_last.cache;
  const bool entered = cache->try_enter();
  StreamBins *bins = cache->current;
  const uint64_t cached = cache->cached_bytes.load(std::memory_order_relaxed) + bytes;
  if (__builtin_expect(entered && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 && bins != nullptr &&
                           bins->key.stream == stream && cached <= kCacheBudget &&
                           push(*bins, *span, CacheEntry{block, &slot}, bytes),
                       1)) {
    slot.store(0, std::memory_order_relaxed);
    cache->cached_bytes.store(cached, std::memory_order_relaxed);
    add(cache->live_bytes, 0 - requested);
    add(cache->frees, 1);
    cache->leave();
    return Status();
  }
  cache->leave();
  return kTry ? Status(GMM_ERROR_NOT_READY) : order_uses_and_free(heap, span, block, &slot, requested, stream);
}

Status cached_free(Core &core, void *block, gmm_stream stream) { return free_block<false>(core, block, stream); }

bool try_free(Core &core, void *block, gmm_stream stream) {
  return free_block<true>(core, block, stream).code() == GMM_OK;
}

bool try_alloc(Heap &heap, uint64_t size, gmm_stream stream, void **out) {
  HeapCache *cache = t_last.serial == heap.fast.serial ? t_last.cache : HeapCache::find(heap);
  if (cache == nullptr) return false;
  if (cache->enter_unless_revoked()) {
    StreamBins *bins = cache->current;
    // bins_of() would make those of a new stream.
    if (bins == nullptr || bins->key.stream != stream) {
      bins = cache->all;
      while (bins != nullptr && bins->key.stream != stream) bins = bins->next;
      if (bins != nullptr) cache->current = bins;
    }
    if (bins != nullptr && pop_any(*cache, *bins, size, size, out)) return true;
  }
  cache->leave();
  return false;
}

// --- Alloc, past the fast path ---------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kBatch = 32;

Status no_memory_for_thread() {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of this thread.");
}

// One block from the heap, for no cache. `first` is kGrow when the heap was asked without growth already.
Status take_one(Heap &heap, uint64_t size, uint64_t alignment, StreamKey key, Effort first, void **out,
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

// None of the large blocks in the cache fits: they return to the heap, which merges them before it splits another run.
// Inside enter(); leaves.
Status alloc_large_from_heap(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, uint64_t alignment,
                             void **out) {
  Heap &heap = *cache.heap;
  CacheEntry back[kLargeEntries];
  uint32_t count = cache.remove_large(bins, back);
  for (StreamBins *other = cache.all; other != nullptr; other = other->next) {
    CacheEntry others[kLargeEntries];
    if (other->large_count != 0) heap.put_back(others, cache.remove_large(*other, others), other->key);
  }
  const StreamKey key = bins.key;
  if (alignment <= kGranule && cache.take_over_large(bins, size)) {
    if (count != 0) heap.put_back(back, count, key);
    count = 0;
    if (pop_any(cache, bins, size, requested, out)) return Status();
  }
  cache.leave();
  Span *span = nullptr;
  GMM_TRY(heap.take_large(size, alignment, key, Effort::kNoGrowth, back, count, &span));
  if (__builtin_expect(span != nullptr, 1)) {
    *out = reinterpret_cast<void *>(span->begin());
    span->slots[0].store(requested, std::memory_order_relaxed);
  } else {
    std::atomic<uint64_t> *slot = nullptr;
    GMM_TRY(take_one(heap, size, alignment, key, Effort::kGrow, out, &slot));
    slot->store(requested, std::memory_order_relaxed);
  }
  cache.enter();
  count_alloc(cache, requested);
  cache.leave();
  return Status();
}

// The cache has no block that fits. The heap fills the bin outside of enter(), so that a revoker never waits for a
// driver call.
Status alloc_from_heap(Heap &heap, uint64_t size, uint64_t requested, uint64_t alignment, gmm_stream stream,
                       void **out) {
  HeapCache *cache = HeapCache::find_or_make(heap);
  if (cache == nullptr) return no_memory_for_thread();
  cache->enter();
  StreamBins *bins = cache->bins_of(stream);
  if (bins != nullptr && size > kMaxSmall) return alloc_large_from_heap(*cache, *bins, size, requested, alignment, out);
  const bool cacheable = bins != nullptr && alignment <= kGranule;
  Bin *bin = cacheable ? cache->bin_of(*bins, small_class(size)) : nullptr;
  if (bin != nullptr && cache->take_over(*bins, *bin) && pop_any(*cache, *bins, size, requested, out)) return Status();
  cache->leave();
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
    GMM_TRY(take_one(heap, size, alignment, key, Effort::kNoGrowth, out, &slot));
  } else {
    --count;
    *out = batch[count].block;
    slot = batch[count].slot;
  }
  slot->store(requested, std::memory_order_relaxed);
  cache->enter();
  count_alloc(*cache, requested);
  uint32_t cached = 0;
  // Memory that was paused meanwhile must not enter the cache.
  if (count != 0 && heap.fast.has_paused.load(std::memory_order_relaxed) == 0) {
    const uint64_t bytes = small_class_size(small_class(size));
    while (cached < count && bin->count < bin->capacity &&
           cache->cached_bytes.load(std::memory_order_relaxed) + bytes <= kCacheBudget) {
      add(cache->cached_bytes, bytes);
      bin->entries[bin->count++] = batch[cached++];
    }
  }
  cache->leave();
  if (cached < count) heap.put_back(batch + cached, count - cached, key);
  return Status();
}

// The thread used another heap or another stream last, or the cache needs attention.
Status switch_cache_and_alloc(Heap &heap, uint64_t size, uint64_t requested, uint64_t alignment, gmm_stream stream,
                              void **out) {
  HeapCache *cache = HeapCache::find(heap);
  if (cache == nullptr) return alloc_from_heap(heap, size, requested, alignment, stream, out);
  cache->enter();
  StreamBins *bins = cache->bins_of(stream);
  if (bins != nullptr && pop_any(*cache, *bins, size, requested, out)) return Status();
  cache->leave();
  return alloc_from_heap(heap, size, requested, alignment, stream, out);
}

// The alignment is larger than every block has. It is apart, so that the fast path has one size only.
Status alloc_aligned(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out) {
  // Beyond a granule the heap places a run of just the size.
  if (alignment > kGranule) return alloc_from_heap(heap, size, size, alignment, stream, out);
  // The class of a multiple of the alignment has aligned blocks, as slabs start at granules.
  return switch_cache_and_alloc(heap, (size + alignment - 1) & ~(alignment - 1), size, alignment, stream, out);
}

// The large block that was freed last does not fit. Inside enter(); leaves.
Status alloc_other_large(HeapCache &cache, StreamBins &bins, uint64_t size, void **out) {
  if (pop_any(cache, bins, size, size, out)) return Status();
  return alloc_large_from_heap(cache, bins, size, size, kUnit, out);
}

}  // namespace

Status dedicated_alloc(Heap &heap, uint64_t size, void **out) {
  HeapCache *cache = HeapCache::find_or_make(heap);
  if (cache == nullptr) return no_memory_for_thread();
  Span *span = nullptr;
  GMM_TRY(heap.take_dedicated(size, &span));
  span->slot(0).store(size, std::memory_order_relaxed);
  cache->enter();
  count_alloc(*cache, size);
  cache->leave();
  *out = reinterpret_cast<void *>(span->begin());
  return Status();
}

// --- Free, past the fast path ----------------------------------------------------------------------------------------

namespace {

__attribute__((cold)) Status free_error(Core &core, const Span *span, void *block) {
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

// Makes room in the cache for a free block, and puts it there or into the heap. The block is checked, and its slot is
// 0. held_for_importers: the heap has the block already (Heap::order_after_uses()), so the free is only counted.
__attribute__((noinline)) Status make_room_and_free(Heap &heap, Span *span, void *block, std::atomic<uint64_t> *slot,
                                                    uint64_t requested, gmm_stream stream, bool held_for_importers) {
  HeapCache *cache = HeapCache::find_or_make(heap);
  const StreamKey key{stream == GMM_STREAM_LEGACY ? GMM_STREAM_DEFAULT : stream,
                      stream == GMM_STREAM_PER_THREAD ? current_thread_id() : 0};
  const CacheEntry entry{block, slot};
  if (cache == nullptr) {
    heap.caches.count_free(requested);
    if (!held_for_importers) heap.put_back(&entry, 1, key);
    return Status();
  }
  cache->enter();
  add(cache->live_bytes, 0 - requested);
  add(cache->frees, 1);
  const uint64_t bytes = span->block_bytes();
  bool cached = false;
  CacheEntry back[kLargeEntries];
  uint32_t back_count = 0;
  if (!held_for_importers && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 && bytes <= kMaxCached &&
      !span->region->dedicated) {
    if (cache->cached_bytes.load(std::memory_order_relaxed) + bytes > kCacheBudget) cache->empty();
    StreamBins *bins = cache->bins_of(stream);
    if (bins != nullptr && !span->is_slab_object) {
      if (bins->large_count == bins->large_capacity) {
        if (!cache->hand_over_large(*bins)) back_count = cache->remove_large(*bins, back);
        heap.caches.transfers.fetch_after(entry.slot, bins->large_capacity);
      }
      bins->large[bins->large_count++] = LargeEntry{entry, bytes};
      cached = true;
    } else if (bins != nullptr) {
      Bin *bin = cache->bin_of(*bins, span->class_index);
      if (bin != nullptr && bin->count == bin->capacity) cache->spill(*bins, *bin, bytes);
      if (bin != nullptr) bin->entries[bin->count++] = entry;
      cached = bin != nullptr;
    }
    if (cached) add(cache->cached_bytes, bytes);
  }
  cache->leave();
  if (back_count != 0) heap.put_back(back, back_count, key);
  if (!cached && !held_for_importers) heap.put_back(&entry, 1, key);
  return Status();
}

// Other streams or importers use the block, the thread used another heap or stream last, the bin is full, memory is
// paused, or the cache needs attention.
Status order_uses_and_free(Heap &heap, Span *span, void *block, std::atomic<uint64_t> *slot, uint64_t requested,
                           gmm_stream stream) {
  bool held_for_importers = false;
  if ((requested & kUsedElsewhere) != 0)
    GMM_TRY(
        heap.order_after_uses(CacheEntry{block, slot}, StreamKey{stream, current_thread_id()}, &held_for_importers));
  slot->store(0, std::memory_order_relaxed);
  return make_room_and_free(heap, span, block, slot, requested & ~kUsedElsewhere, stream, held_for_importers);
}

}  // namespace

// --- Finding, making and entering a cache ----------------------------------------------------------------------------

HeapCache *HeapCache::find(const Heap &heap) {
  const ThreadState *state = t_state;
  if (state == nullptr || heap.fast.slot >= state->table_size) return nullptr;
  const ThreadTableEntry &entry = state->table[heap.fast.slot];
  if (entry.serial != heap.fast.serial) return nullptr;
  t_last = entry;
  return entry.cache;
}

HeapCache *HeapCache::find_or_make(Heap &heap) {
  if (HeapCache *cache = find(heap); cache != nullptr) return cache;
  ThreadState *state = make_thread_state();
  if (state == nullptr || !state->reserve_slot(heap.fast.slot)) return nullptr;
  HeapCache *cache = heap.core().allocator.create<HeapCache>();
  if (cache == nullptr) return nullptr;
  cache->heap = &heap;
  cache->thread_id = state->id;
  if (!expedited_barriers()) cache->attention.store(kNeedsFence, std::memory_order_relaxed);
  heap.caches.add(cache);
  state->table[heap.fast.slot] = ThreadTableEntry{heap.fast.serial, cache};
  return cache;
}

bool HeapCache::enter_unless_revoked() {
  if (try_enter()) return true;
  if ((attention.load(std::memory_order_relaxed) & kNeedsFence) != 0) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return (attention.load(std::memory_order_acquire) & kRevoked) == 0;
}

void HeapCache::enter_after_revoker() {
  while (!enter_unless_revoked()) {
    leave();
    heap->caches.wait_for_drain();
  }
}

// --- Bins ------------------------------------------------------------------------------------------------------------

namespace {

// A bin holds about this many bytes, and 4 to 64 blocks. The second is for blocks that go from thread to thread.
constexpr uint64_t kBinBytes = uint64_t{256} << 10, kSharedBinBytes = uint64_t{4} << 20;

uint16_t bin_capacity(uint64_t block_bytes, uint64_t bin_bytes) {
  const uint64_t count = bin_bytes / block_bytes;
  return static_cast<uint16_t>(count > TransferCache::kMaxBatch ? TransferCache::kMaxBatch : count < 4 ? 4 : count);
}

// Bytes of a bin's array.
uint64_t bin_array_bytes(uint64_t block_bytes) {
  return bin_capacity(block_bytes, kSharedBinBytes) * sizeof(CacheEntry);
}

uint32_t large_batch(uint64_t block_bytes) {
  const uint64_t count = TransferCache::kMaxBatchBytes / block_bytes;
  return static_cast<uint32_t>(count < kLargeEntries ? count : kLargeEntries);
}

// How many large blocks a stream holds where they go from thread to thread: a batch, or several small batches.
uint32_t shared_large_capacity(uint64_t block_bytes) {
  const uint32_t batch = large_batch(block_bytes);
  return batch < kLargeEntries / 2 ? kLargeEntries / 2 : batch;
}

}  // namespace

StreamBins *HeapCache::bins_of(gmm_stream stream) {
  if (stream == GMM_STREAM_LEGACY) stream = GMM_STREAM_DEFAULT;
  for (StreamBins *bins = all; bins != nullptr; bins = bins->next)
    if (bins->key.stream == stream) return current = bins;
  StreamBins *bins = heap->core().allocator.create<StreamBins>();
  if (bins == nullptr) return nullptr;
  *bins = StreamBins{};
  bins->key = StreamKey{stream, stream == GMM_STREAM_PER_THREAD ? thread_id : 0};
  bins->large_capacity = kFewLargeEntries;
  bins->next = all;
  all = bins;
  return current = bins;
}

Bin *HeapCache::bin_of(StreamBins &bins, uint32_t class_index) {
  Bin &bin = bins.bins[class_index];
  if (bin.entries != nullptr) return &bin;
  const uint64_t bytes = small_class_size(class_index);
  bin.entries = static_cast<CacheEntry *>(heap->core().allocator.allocate(bin_array_bytes(bytes), 64));
  if (bin.entries == nullptr) return nullptr;
  bin.capacity = bin_capacity(bytes, kBinBytes);
  bin.block_bytes = static_cast<uint32_t>(bytes);
  return &bin;
}

void HeapCache::free_bins() {
  const HostAllocator &allocator = heap->core().allocator;
  while (all != nullptr) {
    StreamBins *bins = all;
    all = bins->next;
    for (Bin &bin : bins->bins)
      if (bin.entries != nullptr) allocator.deallocate(bin.entries, bin_array_bytes(bin.block_bytes));
    allocator.destroy(bins);
  }
  current = nullptr;
}

uint32_t HeapCache::remove_large(StreamBins &bins, CacheEntry *out) {
  const uint32_t count = bins.large_count;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = bins.large[i].entry;
    bytes += bins.large[i].bytes;
  }
  bins.large_count = 0;
  bins.large_capacity = kFewLargeEntries;
  add(cached_bytes, 0 - bytes);
  return count;
}

// --- Full bins from thread to thread ---------------------------------------------------------------------------------

// Whether the blocks that this thread frees are mostly those of other threads. It will want its own again; what it will
// not want should be merged.
bool HeapCache::frees_for_others() const {
  return frees.load(std::memory_order_relaxed) > allocations.load(std::memory_order_relaxed);
}

// Memory that was paused meanwhile must not enter a cache.
bool HeapCache::may_take_over(uint64_t bytes) const {
  return heap->fast.has_paused.load(std::memory_order_relaxed) == 0 &&
         cached_bytes.load(std::memory_order_relaxed) + bytes <= kCacheBudget;
}

bool HeapCache::take_over(const StreamBins &bins, Bin &bin) {
  if (bin.count != 0 || !may_take_over(kSharedBinBytes)) return false;
  const uint32_t count = heap->caches.transfers.take(bins.key, bin.block_bytes, bin.entries);
  if (count == 0) return false;
  bin.capacity = bin_capacity(bin.block_bytes, kSharedBinBytes);
  bin.count = static_cast<uint16_t>(count);
  add(cached_bytes, count * uint64_t{bin.block_bytes});
  return true;
}

bool HeapCache::take_over_large(StreamBins &bins, uint64_t size) {
  const uint64_t bytes = granules(size) * kGranule;
  if (bins.large_count != 0 || bytes > TransferCache::kMaxBatchBytes || !may_take_over(large_batch(bytes) * bytes))
    return false;
  CacheEntry entries[kLargeEntries];
  const uint32_t count = heap->caches.transfers.take(bins.key, bytes, entries);
  if (count == 0) return false;
  for (uint32_t i = 0; i < count; ++i) bins.large[i] = LargeEntry{entries[i], bytes};
  bins.large_count = count;
  bins.large_capacity = shared_large_capacity(bytes);
  add(cached_bytes, count * bytes);
  return true;
}

void HeapCache::spill(StreamBins &bins, Bin &bin, uint64_t block_bytes) {
  if (bins.key.stream != GMM_STREAM_PER_THREAD && frees_for_others()) {
    const uint16_t capacity = bin_capacity(block_bytes, kSharedBinBytes);
    if (bin.capacity < capacity) {
      bin.capacity = capacity;
      return;
    }
    if (heap->caches.transfers.put(bins.key, block_bytes, bin.entries, bin.count)) {
      add(cached_bytes, 0 - bin.count * block_bytes);
      bin.count = 0;
      return;
    }
  }
  const uint16_t count = static_cast<uint16_t>((bin.count + 1) / 2);
  // The oldest lie at the bottom: they are the coldest.
  heap->put_back(bin.entries, count, bins.key);
  for (uint32_t i = count; i < bin.count; ++i) bin.entries[i - count] = bin.entries[i];
  bin.count = static_cast<uint16_t>(bin.count - count);
  add(cached_bytes, 0 - count * block_bytes);
}

bool HeapCache::hand_over_large(StreamBins &bins) {
  const uint64_t bytes = bins.large[0].bytes;
  // Small ones, which are here for their alignment, would be taken for blocks of a class. They are too many for its
  // bin.
  if (bytes <= kMaxSmall) return false;
  if (bins.key.stream == GMM_STREAM_PER_THREAD || bytes > TransferCache::kMaxBatchBytes / 2 || !frees_for_others())
    return false;
  CacheEntry entries[kLargeEntries];
  for (uint32_t i = 0; i < bins.large_count; ++i) {
    if (bins.large[i].bytes != bytes) return false;
    entries[i] = bins.large[i].entry;
  }
  if (bins.large_capacity < shared_large_capacity(bytes)) {
    bins.large_capacity = shared_large_capacity(bytes);
    return true;
  }
  uint32_t left = bins.large_count;
  while (left != 0) {
    const uint32_t count = left < large_batch(bytes) ? left : large_batch(bytes);
    if (!heap->caches.transfers.put(bins.key, bytes, entries + left - count, count)) break;
    left -= count;
  }
  const bool any = left != bins.large_count;
  add(cached_bytes, 0 - (bins.large_count - left) * bytes);
  bins.large_count = left;
  return any;
}

// --- Emptying --------------------------------------------------------------------------------------------------------

void HeapCache::empty() { empty_except(false, nullptr); }

void HeapCache::empty_revoked(Vector<CacheEntry> *per_thread) {
  while (busy.load(std::memory_order_seq_cst) != 0) sched_yield();
  empty_except(true, per_thread);
  attention.fetch_and(~kRevoked, std::memory_order_release);
}

// keep_per_thread: what the per-thread stream freed goes to the list, as far as there is host memory, or stays. Another
// thread can't put it into the heap, as only the owner can record an event on that stream.
void HeapCache::empty_except(bool keep_per_thread, Vector<CacheEntry> *per_thread) {
  uint64_t kept = 0;
  for (StreamBins *bins = all; bins != nullptr; bins = bins->next) {
    const bool keep = keep_per_thread && bins->key.stream == GMM_STREAM_PER_THREAD;
    if (keep) {
      while (bins->large_count != 0 && per_thread != nullptr &&
             per_thread->push_back(bins->large[bins->large_count - 1].entry))
        --bins->large_count;
      for (uint32_t i = 0; i < bins->large_count; ++i) kept += bins->large[i].bytes;
    } else if (bins->large_count != 0) {
      CacheEntry large[kLargeEntries];
      const uint32_t count = remove_large(*bins, large);
      heap->put_back(large, count, bins->key);
    }
    for (Bin &bin : bins->bins) {
      if (keep) {
        while (bin.count != 0 && per_thread != nullptr && per_thread->push_back(bin.entries[bin.count - 1]))
          --bin.count;
        for (uint32_t i = 0; i < bin.count; ++i)
          kept += heap->core().page_map.find(bin.entries[i].block)->block_bytes();
        continue;
      }
      if (bin.count == 0) continue;
      heap->put_back(bin.entries, bin.count, bins->key);
      bin.count = 0;
    }
  }
  cached_bytes.store(kept, std::memory_order_relaxed);
}

}  // namespace gmm
