// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/cache_owner.h"

namespace gmm {
namespace {

// A stack of a class holds about this many bytes, and 4 to 64 blocks; where blocks go from thread to thread, so many.
constexpr uint64_t kStackBytes = uint64_t{256} << 10, kSharedStackBytes = uint64_t{4} << 20;

uint16_t stack_capacity(uint64_t block_bytes, uint64_t stack_bytes) {
  const uint64_t fits = stack_bytes / block_bytes;
  return static_cast<uint16_t>(fits > TransferCache::kMaxBatch ? TransferCache::kMaxBatch : fits < 4 ? 4 : fits);
}

// Whether the blocks that it frees are rather other threads'. Those of its own it will want again, and what it does not is to be merged.
bool frees_for_others(const HeapCache &cache) {
  return cache.frees.load(std::memory_order_relaxed) > cache.allocations.load(std::memory_order_relaxed);
}

}  // namespace

uint64_t stack_room(uint64_t block_bytes) {
  return stack_capacity(block_bytes, kSharedStackBytes) * sizeof(CacheEntry);
}

namespace {

uint32_t large_batch(uint64_t block_bytes) {
  const uint64_t fits = TransferCache::kMaxBatchBytes / block_bytes;
  return static_cast<uint32_t>(fits < kLargeEntries ? fits : kLargeEntries);
}

// Where they go from thread to thread: a batch, or several where those are of few blocks.
uint32_t shared_large_capacity(uint64_t block_bytes) {
  const uint32_t batch = large_batch(block_bytes);
  return batch < kLargeEntries / 2 ? kLargeEntries / 2 : batch;
}

// Memory that was paused meanwhile must not enter a cache.
bool may_take_over(const HeapCache &cache, uint64_t bytes) {
  return cache.heap->fast.has_paused.load(std::memory_order_relaxed) == 0 &&
         cache.cached_bytes.load(std::memory_order_relaxed) + bytes <= kCacheBudget;
}

}  // namespace

bool enter(HeapCache &cache) {
  if (enter_at_once(cache)) return true;
  if ((cache.attention.load(std::memory_order_relaxed) & kNeedsFence) != 0) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return (cache.attention.load(std::memory_order_acquire) & kRevoked) == 0;
}

void wait_for_revoker(HeapCache &cache) {
  leave(cache);
  LockGuard guard(cache.heap->caches_mutex);
}

HeapCache *find_cache(const Heap &heap) {
  const ThreadState *state = t_state;
  if (state == nullptr || heap.fast.slot >= state->table_size) return nullptr;
  const ThreadTableEntry &entry = state->table[heap.fast.slot];
  if (entry.serial != heap.fast.serial) return nullptr;
  t_last = entry;
  return entry.cache;
}

HeapCache *make_cache(Heap &heap) {
  ThreadState *state = make_thread_state();
  if (state == nullptr || !state->reserve_slot(heap.fast.slot)) return nullptr;
  HeapCache *cache = heap.core().allocator.create<HeapCache>();
  if (cache == nullptr) return nullptr;
  cache->heap = &heap;
  cache->thread_id = state->id;
  if (!expedited_barriers()) cache->attention.store(kNeedsFence, std::memory_order_relaxed);
  {
    LockGuard guard(heap.caches_mutex);
    heap.caches.push_back(cache);
  }
  state->table[heap.fast.slot] = ThreadTableEntry{heap.fast.serial, cache};
  return cache;
}

StreamBins *bins_of(HeapCache &cache, gmm_stream stream) {
  if (stream == GMM_STREAM_LEGACY) stream = GMM_STREAM_DEFAULT;
  for (StreamBins *bins = cache.all; bins != nullptr; bins = bins->next)
    if (bins->key.stream == stream) return cache.current = bins;
  StreamBins *bins = cache.heap->core().allocator.create<StreamBins>();
  if (bins == nullptr) return nullptr;
  *bins = StreamBins{};
  bins->key = StreamKey{stream, stream == GMM_STREAM_PER_THREAD ? cache.thread_id : 0};
  bins->large_capacity = kFewLargeEntries;
  bins->next = cache.all;
  cache.all = bins;
  return cache.current = bins;
}

Bin *stack_of(HeapCache &cache, StreamBins &bins, uint32_t index) {
  Bin &bin = bins.bins[index];
  if (bin.entries != nullptr) return &bin;
  const uint64_t bytes = small_class_size(index);
  bin.entries = static_cast<CacheEntry *>(cache.heap->core().allocator.allocate(stack_room(bytes), 64));
  if (bin.entries == nullptr) return nullptr;
  bin.capacity = stack_capacity(bytes, kStackBytes);
  bin.block_bytes = static_cast<uint32_t>(bytes);
  return &bin;
}

uint32_t take_large_entries(HeapCache &cache, StreamBins &bins, CacheEntry *out) {
  const uint32_t count = bins.large_count;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = bins.large[i].entry;
    bytes += bins.large[i].bytes;
  }
  bins.large_count = 0;
  bins.large_capacity = kFewLargeEntries;
  add(cache.cached_bytes, 0 - bytes);
  return count;
}

bool take_over(HeapCache &cache, const StreamBins &bins, Bin &bin) {
  if (bin.count != 0 || !may_take_over(cache, kSharedStackBytes)) return false;
  const uint32_t count = cache.heap->transfers.take(bins.key, bin.block_bytes, bin.entries);
  if (count == 0) return false;
  bin.capacity = stack_capacity(bin.block_bytes, kSharedStackBytes);
  bin.count = static_cast<uint16_t>(count);
  add(cache.cached_bytes, count * uint64_t{bin.block_bytes});
  return true;
}

bool take_over_large(HeapCache &cache, StreamBins &bins, uint64_t size) {
  const uint64_t bytes = granules(size) * kGranule;
  if (bins.large_count != 0 || bytes > TransferCache::kMaxBatchBytes ||
      !may_take_over(cache, large_batch(bytes) * bytes))
    return false;
  CacheEntry entries[kLargeEntries];
  const uint32_t count = cache.heap->transfers.take(bins.key, bytes, entries);
  if (count == 0) return false;
  for (uint32_t i = 0; i < count; ++i) bins.large[i] = LargeEntry{entries[i], bytes};
  bins.large_count = count;
  bins.large_capacity = shared_large_capacity(bytes);
  add(cache.cached_bytes, count * bytes);
  return true;
}

void spill(HeapCache &cache, StreamBins &bins, Bin &bin, uint64_t block_bytes) {
  if (bins.key.stream != GMM_STREAM_PER_THREAD && frees_for_others(cache)) {
    const uint16_t capacity = stack_capacity(block_bytes, kSharedStackBytes);
    if (bin.capacity < capacity) {
      bin.capacity = capacity;
      return;
    }
    if (cache.heap->transfers.put(bins.key, block_bytes, bin.entries, bin.count)) {
      add(cache.cached_bytes, 0 - bin.count * block_bytes);
      bin.count = 0;
      return;
    }
  }
  const uint16_t count = static_cast<uint16_t>((bin.count + 1) / 2);
  // The oldest lie at the bottom: they are the coldest.
  cache.heap->put_back(bin.entries, count, bins.key);
  for (uint32_t i = count; i < bin.count; ++i) bin.entries[i - count] = bin.entries[i];
  bin.count = static_cast<uint16_t>(bin.count - count);
  add(cache.cached_bytes, 0 - count * block_bytes);
}

bool hand_over_large(HeapCache &cache, StreamBins &bins) {
  const uint64_t bytes = bins.large[0].bytes;
  // Small ones, which are here for their alignment, would be taken for blocks of a class, of whose stack they are too many.
  if (bytes <= kMaxSmall) return false;
  if (bins.key.stream == GMM_STREAM_PER_THREAD || bytes > TransferCache::kMaxBatchBytes / 2 || !frees_for_others(cache))
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
    if (!cache.heap->transfers.put(bins.key, bytes, entries + left - count, count)) break;
    left -= count;
  }
  const bool any = left != bins.large_count;
  add(cache.cached_bytes, 0 - (bins.large_count - left) * bytes);
  bins.large_count = left;
  return any;
}

}  // namespace gmm
