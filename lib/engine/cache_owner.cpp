// SPDX-License-Identifier: Apache-2.0
#include "engine/cache_owner.h"

#include <cstdlib>

namespace gmm {
namespace {

// A stack of a class holds about this many bytes, and 4 to 64 blocks.
constexpr uint64_t kStackBytes = uint64_t{256} << 10;

uint16_t stack_capacity(uint32_t index) {
  const uint64_t fits = kStackBytes / small_class_size(index);
  return static_cast<uint16_t>(fits > 64 ? 64 : fits < 4 ? 4 : fits);
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
  ThreadState *state = t_state != nullptr ? t_state : make_thread_state();
  if (state == nullptr) return nullptr;
  if (heap.fast.slot >= state->table_size) {
    const uint32_t size = (heap.fast.slot + 64) & ~63u;
    void *table = std::realloc(state->table, size * sizeof(ThreadTableEntry));
    if (table == nullptr) return nullptr;
    state->table = static_cast<ThreadTableEntry *>(table);
    for (uint32_t i = state->table_size; i < size; ++i) state->table[i] = ThreadTableEntry{};
    state->table_size = size;
  }
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
  bins->next = cache.all;
  cache.all = bins;
  return cache.current = bins;
}

Bin *stack_of(HeapCache &cache, StreamBins &bins, uint32_t index) {
  Bin &bin = bins.bins[index];
  if (bin.entries != nullptr) return &bin;
  const uint16_t capacity = stack_capacity(index);
  bin.entries = static_cast<CacheEntry *>(cache.heap->core().allocator.allocate(capacity * sizeof(CacheEntry), 64));
  if (bin.entries == nullptr) return nullptr;
  bin.capacity = capacity;
  bin.block_bytes = static_cast<uint32_t>(small_class_size(index));
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
  add(cache.cached_bytes, 0 - bytes);
  return count;
}

}  // namespace gmm
