// SPDX-License-Identifier: Apache-2.0
// The rare side of the thread caches: how they are emptied by others, end, and are counted.
#include <sched.h>

#include "engine/heap/cache_owner.h"

namespace gmm {
namespace {

void free_bins(HeapCache &cache) {
  const HostAllocator &allocator = cache.heap->core().allocator;
  while (cache.all != nullptr) {
    StreamBins *bins = cache.all;
    cache.all = bins->next;
    for (Bin &bin : bins->bins)
      if (bin.entries != nullptr) allocator.deallocate(bin.entries, stack_room(bin.block_bytes));
    allocator.destroy(bins);
  }
  cache.current = nullptr;
}

}  // namespace

void revoke(HeapCache &cache) { cache.attention.fetch_or(kRevoked, std::memory_order_seq_cst); }

void empty_revoked(HeapCache &cache, Vector<CacheEntry> *per_thread) {
  while (cache.busy.load(std::memory_order_seq_cst) != 0) sched_yield();
  empty_cache(cache, false, per_thread);
  cache.attention.fetch_and(~kRevoked, std::memory_order_release);
}

void empty_cache(HeapCache &cache, bool owner, Vector<CacheEntry> *per_thread) {
  uint64_t kept = 0;
  for (StreamBins *bins = cache.all; bins != nullptr; bins = bins->next) {
    const bool apart = bins->key.stream == GMM_STREAM_PER_THREAD && !owner;
    if (apart) {
      while (bins->large_count != 0 && per_thread != nullptr &&
             per_thread->push_back(bins->large[bins->large_count - 1].entry))
        --bins->large_count;
      for (uint32_t i = 0; i < bins->large_count; ++i) kept += bins->large[i].bytes;
    } else if (bins->large_count != 0) {
      CacheEntry large[kLargeEntries];
      const uint32_t count = take_large_entries(cache, *bins, large);
      cache.heap->put_back(large, count, bins->key);
    }
    for (Bin &bin : bins->bins) {
      if (apart) {
        while (bin.count != 0 && per_thread != nullptr && per_thread->push_back(bin.entries[bin.count - 1]))
          --bin.count;
        for (uint32_t i = 0; i < bin.count; ++i)
          kept += cache.heap->core().page_map.find(bin.entries[i].block)->block_bytes();
        continue;
      }
      if (bin.count == 0) continue;
      cache.heap->put_back(bin.entries, bin.count, bins->key);
      bin.count = 0;
    }
  }
  cache.cached_bytes.store(kept, std::memory_order_relaxed);
}

void end_cache(HeapCache &cache) {
  Heap &heap = *cache.heap;
  HeapTotals &ended = heap.ended;
  ended.live_bytes += cache.live_bytes.load(std::memory_order_relaxed);
  ended.allocations += cache.allocations.load(std::memory_order_relaxed);
  ended.frees += cache.frees.load(std::memory_order_relaxed);
  List<HeapCache, HeapCaches>::remove(&cache);
  free_bins(cache);
  heap.core().allocator.destroy(&cache);
}

Status Heap::drain_caches(bool wait) {
  Vector<CacheEntry> per_thread(core_.allocator);
  {
    LockGuard guard(caches_mutex);
    uint64_t live = ended.live_bytes;
    for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) revoke(*cache);
    if (!caches.empty()) pass_barrier();
    for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
      empty_revoked(*cache, wait ? &per_thread : nullptr);
      live += cache->live_bytes.load(std::memory_order_relaxed);
    }
    transfers.drain();
    note_peak(live);
  }
  if (wait) {
    LockGuard guard(mutex);
    while (!unsettled_.empty() && per_thread.push_back(unsettled_.back())) unsettled_.truncate(unsettled_.size() - 1);
  }
  if (per_thread.empty()) return Status();
  // Without a lock, as a callback in a stream may free memory.
  const Status status = core_.backend->synchronize(options_.device);
  if (!status.ok()) {
    // As freed by a stream that nobody can wait for: they are kept for the next try.
    LockGuard guard(mutex);
    for (const CacheEntry &entry : per_thread)
      if (!unsettled_.push_back(entry))
        core_.log.write(LogLevel::kError, "A free block is lost: no host memory, and the device cannot be waited for.");
    return status;
  }
  put_back(per_thread.data(), static_cast<uint32_t>(per_thread.size()), StreamKey{GMM_STREAM_PER_THREAD, 0});
  return Status();
}

Status Heap::drain_for_growth(uint64_t thread) {
  {
    LockGuard guard(caches_mutex);
    uint64_t live = ended.live_bytes;
    uint32_t others = 0;
    for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
      live += cache->live_bytes.load(std::memory_order_relaxed);
      others += cache->thread_id != thread && cache->cached_bytes.load(std::memory_order_relaxed) != 0;
    }
    note_peak(live);
    transfers.drain();  // costs no barrier
    LockGuard heap_guard(mutex);
    if (others != 0 && !growth_.may_drain()) return Status();
    growth_.drained(others);
  }
  return drain_caches(false);
}

// The sum over caches that are read one after the other: a block that one thread allocated and another freed may be
// seen as freed only.
void Heap::note_peak(uint64_t live) {
  if (static_cast<int64_t>(live) < 0) live = 0;
  if (ended.peak_live < live) ended.peak_live = live;
  seen_live_.store(live, std::memory_order_relaxed);
  seen_peak_live_.store(ended.peak_live, std::memory_order_relaxed);
}

void end_caches(Heap &heap) {
  LockGuard guard(heap.caches_mutex);
  while (HeapCache *cache = heap.caches.front()) end_cache(*cache);
}

HeapTotals Heap::totals() {
  HeapTotals totals;
  {
    LockGuard guard(caches_mutex);
    totals = ended;
    for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
      totals.live_bytes += cache->live_bytes.load(std::memory_order_relaxed);
      totals.allocations += cache->allocations.load(std::memory_order_relaxed);
      totals.frees += cache->frees.load(std::memory_order_relaxed);
      totals.free_bytes += cache->cached_bytes.load(std::memory_order_relaxed);
    }
    totals.free_bytes += transfers.bytes();
    if (static_cast<int64_t>(totals.live_bytes) < 0) totals.live_bytes = 0;
    totals.live_blocks = totals.allocations - totals.frees - totals.forgotten;
    if (static_cast<int64_t>(totals.live_blocks) < 0) totals.live_blocks = 0;
    if (static_cast<int64_t>(totals.free_bytes) < 0) totals.free_bytes = 0;
    note_peak(totals.live_bytes);
    totals.peak_live = ended.peak_live;
  }
  LockGuard guard(mutex);
  totals.held = own_quota_.held();
  totals.peak_held = own_quota_.peak();
  totals.paused = paused_;
  totals.extents = extent_count_;
  totals.free_bytes += free_.bytes() + slab_tails_;
  for (Span *run = dedicated_.front(); run != nullptr; run = dedicated_.next(run)) totals.free_bytes += run->bytes();
  for (auto &slabs : slabs_)
    for (Span *slab = slabs.front(); slab != nullptr; slab = slabs.next(slab))
      totals.free_bytes += static_cast<uint64_t>(std::popcount(slab->free_blocks)) * slab->block_bytes();
  return totals;
}

}  // namespace gmm
