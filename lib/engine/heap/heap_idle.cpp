// SPDX-License-Identifier: Apache-2.0
// What of a heap nobody uses.
//
// Two things must hold of an extent that goes: at each look during the age it was free, and in all no more goes than was
// free at every moment of the age, also between the looks. The first keeps what was used just now; the second keeps what
// steady use will want again.
#include "engine/heap/cache_state.h"
#include "engine/heap/idle_rule.h"

namespace gmm {

uint64_t Heap::drain_idle_caches(uint64_t now, uint64_t age) {
  LockGuard guard(caches_mutex);
  bool any = false;
  for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
    const uint64_t calls =
        cache->allocations.load(std::memory_order_relaxed) + cache->frees.load(std::memory_order_relaxed);
    if (calls != cache->seen_calls) {
      cache->seen_calls = calls;
      cache->idle_since = now;
      cache->drained = false;
    } else if (!cache->drained && now - cache->idle_since >= age &&
               cache->cached_bytes.load(std::memory_order_relaxed) != 0) {
      revoke(*cache);
      any = true;
    }
  }
  if (any) pass_barrier();
  uint64_t before = 0, after = 0;
  {
    LockGuard heap_guard(mutex);
    before = free_.releasable();
  }
  uint64_t cached = transfers.drain_idle(now, age);
  for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
    if ((cache->attention.load(std::memory_order_relaxed) & kRevoked) == 0) continue;
    cached += cache->cached_bytes.load(std::memory_order_relaxed);
    empty_revoked(*cache, nullptr);
    cache->drained = true;
  }
  LockGuard heap_guard(mutex);
  after = free_.releasable();
  // Others may take and free meanwhile.
  const uint64_t grown = after < before ? 0 : after - before;
  return grown < cached ? grown : cached;
}

// Stamps the extents that lie whole in free memory, whatever streams it waits for; `since` when the last look did not see them free.
void Heap::stamp_free_extents(uint64_t since) {
  free_.for_each([&](Span *first) {
    // The first of neighbouring runs speaks for all.
    const Span *before = first->before;
    if (before != nullptr && before->is(SpanState::kFree)) return;
    const uintptr_t begin = first->begin();
    uintptr_t end = first->end();
    for (const Span *next = first->after; next != nullptr && next->is(SpanState::kFree); next = next->after)
      end = next->end();
    if (end - begin < kExtentAlignment) return;
    for (uintptr_t at = begin; at < end;) {
      Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
      const uintptr_t base = extent->base.load(std::memory_order_relaxed);
      at = base + extent->size.load(std::memory_order_relaxed);
      if (base < begin || at > end) continue;
      IdleMark &mark = extent->idle;
      // An extent's bookkeeping serves another one later: the id tells.
      if (mark.extent_id != extent->id || mark.look + 1 < look_) mark.free_since = since;
      mark.extent_id = extent->id;
      mark.look = look_;
    }
  });
}

uint64_t Heap::look_for_idle(uint64_t now, uint64_t age) {
  {
    LockGuard guard(mutex);
    ++look_;
    stamp_free_extents(now);
  }
  const uint64_t drained = drain_idle_caches(now, age);
  uint64_t low = 0;
  {
    LockGuard guard(mutex);
    // What became free just now came from the idle caches, where nobody used it for the age.
    if (drained != 0) stamp_free_extents(now - age);
    low = free_.take_low();
  }
  const uint64_t may_go = low_water_.note(low, now, age) + drained;
  low_water_.add(drained);
  return may_go;
}

Status Heap::release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released) {
  LockGuard guard(mutex);
  if ((at_most == 0 && dedicated_.empty()) || streams_.any_capturing()) return Status();
  settle_free();
  const IdleRule rule{now, age, at_most, look_};
  const Status status = release_free_locked(at_most < slice ? at_most : slice, released, &rule);
  low_water_.subtract(*released);
  return status;
}

}  // namespace gmm
