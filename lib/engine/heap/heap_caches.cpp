// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap_caches.h"

#include <algorithm>

#include "base/barrier.h"
#include "engine/heap/heap.h"
#include "engine/heap/thread_cache.h"

namespace gmm {

void HeapCaches::add(HeapCache *cache) {
  LockGuard guard(mutex);
  LockGuard list_guard(list_mutex_);
  list_.push_back(cache);
}

// The counters go to the ended ones, the memory to the system. The mutex is held.
void HeapCaches::end(HeapCache &cache) {
  {
    LockGuard guard(list_mutex_);
    ended_.live_bytes += cache.live_bytes.load(std::memory_order_relaxed);
    ended_.allocations += cache.allocations.load(std::memory_order_relaxed);
    ended_.frees += cache.frees.load(std::memory_order_relaxed);
    List<HeapCache, HeapCaches>::remove(&cache);
  }
  cache.free_bins();
  heap_.core().allocator.destroy(&cache);
}

void HeapCaches::end_of_thread(HeapCache &cache) {
  LockGuard guard(mutex);
  const uint64_t thread = cache.thread_id;
  cache.empty();
  end(cache);
  heap_.end_thread(thread);
}

void HeapCaches::end_all() {
  LockGuard guard(mutex);
  while (HeapCache *cache = list_.front()) end(*cache);
}

// Revokes the caches for which choose(HeapCache &) is true, makes sure with one barrier that their owners know, and
// calls fn(HeapCache &), which lets the owner enter again. With the mutex held.
template <typename Choose, typename Fn>
void HeapCaches::revoke(Choose choose, Fn fn) {
  bool any = false;
  for_each_locked([&](HeapCache &cache) {
    if (!choose(cache)) return;
    cache.revoke();
    any = true;
  });
  if (!any) return;
  pass_barrier();
  for_each_locked([&](HeapCache &cache) {
    if (cache.is_revoked()) fn(cache);
  });
}

void HeapCaches::drain(Vector<CacheEntry> *per_thread) {
  LockGuard guard(mutex);
  revoke([](HeapCache &) { return true; },
         [&](HeapCache &cache) { cache.empty_revoked(per_thread, per_thread != nullptr); });
  transfers.drain();
  totals();  // notes the peak
}

void HeapCaches::end_fast_paths() {
  LockGuard guard(mutex);
  for_each_locked([](HeapCache &cache) { cache.attention.fetch_or(kTraceBegan, std::memory_order_seq_cst); });
  pass_barrier();
  for_each_locked([](HeapCache &cache) { wait_until_left(cache.busy); });
}

void HeapCaches::forget_stream(gmm_stream stream) {
  if (stream == GMM_STREAM_LEGACY) stream = GMM_STREAM_DEFAULT;
  if (stream == GMM_STREAM_PER_THREAD) return;  // other threads have one, too
  LockGuard guard(mutex);
  revoke([](HeapCache &) { return true; }, [&](HeapCache &cache) { cache.forget_revoked(stream); });
  transfers.drain();
}

uint32_t HeapCaches::drain_transfers(uint64_t thread, uint64_t *quiet) {
  LockGuard guard(mutex);
  uint32_t others = 0;
  ++growths_;
  *quiet = 0;
  for_each_locked([&](HeapCache &cache) {
    const uint64_t cached = cache.cached_bytes.load(std::memory_order_relaxed);
    others += cache.thread_id != thread && cached != 0;
    if (cache.by_growths.look(cache.calls(), growths_, kQuietGrowths)) *quiet += cached;
  });
  transfers.drain();
  totals();
  return others;
}

// Empties the caches that are idle for an age by one of the clocks. Returns the bytes that they held.
template <typename Clock>
uint64_t HeapCaches::drain_by(Clock clock, uint64_t now, uint64_t age) {
  uint64_t bytes = 0;
  const auto choose = [&](HeapCache &cache) {
    return (cache.*clock).look(cache.calls(), now, age) && cache.cached_bytes.load(std::memory_order_relaxed) != 0;
  };
  revoke(choose, [&](HeapCache &cache) {
    bytes += cache.cached_bytes.load(std::memory_order_relaxed);
    cache.empty_revoked(nullptr, true);
    (cache.*clock).drained = true;
  });
  return bytes;
}

void HeapCaches::drain_quiet() {
  LockGuard guard(mutex);
  drain_by(&HeapCache::by_growths, growths_, kQuietGrowths);
}

uint64_t HeapCaches::drain_idle(uint64_t now, uint64_t age) {
  LockGuard guard(mutex);
  const uint64_t before = heap_.reclaim().releasable();
  const uint64_t cached = drain_by(&HeapCache::by_time, now, age) + transfers.drain_idle(now, age);
  const uint64_t after = heap_.reclaim().releasable();
  // Others may have taken and freed blocks in between.
  const uint64_t grown = after < before ? 0 : after - before;
  return grown < cached ? grown : cached;
}

HeapTotals HeapCaches::totals() {
  LockGuard guard(list_mutex_);
  HeapTotals totals = ended_;
  for_each_locked([&](const HeapCache &cache) {
    totals.live_bytes += cache.live_bytes.load(std::memory_order_relaxed);
    totals.allocations += cache.allocations.load(std::memory_order_relaxed);
    totals.frees += cache.frees.load(std::memory_order_relaxed);
    totals.free_bytes += cache.cached_bytes.load(std::memory_order_relaxed);
  });
  if (static_cast<int64_t>(totals.live_bytes) < 0) totals.live_bytes = 0;
  totals.free_bytes += transfers.bytes();
  totals.live_blocks = totals.allocations - totals.frees - totals.forgotten;
  if (static_cast<int64_t>(totals.live_blocks) < 0) totals.live_blocks = 0;
  if (static_cast<int64_t>(totals.free_bytes) < 0) totals.free_bytes = 0;
  totals.peak_live = ended_.peak_live = std::max(ended_.peak_live, totals.live_bytes);
  return totals;
}

void HeapCaches::count(const HeapTotals &calls) {
  LockGuard guard(list_mutex_);
  ended_.live_bytes += calls.live_bytes;
  ended_.allocations += calls.allocations;
  ended_.frees += calls.frees;
  ended_.failures += calls.failures;
}

void HeapCaches::forget_live() {
  LockGuard guard(mutex);
  LockGuard list_guard(list_mutex_);
  ended_.live_bytes = 0;
  ended_.forgotten = ended_.allocations - ended_.frees;
  for_each_locked([&](HeapCache &cache) {
    cache.live_bytes.store(0, std::memory_order_relaxed);
    ended_.forgotten += cache.allocations.load(std::memory_order_relaxed) - cache.frees.load(std::memory_order_relaxed);
  });
}

}  // namespace gmm
