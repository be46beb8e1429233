// SPDX-License-Identifier: Apache-2.0
// What of a heap nobody uses.
//
// Two things must hold of an extent that goes: at each look during the age it was free, and in all no more goes than
// was free at every moment of the age, also between the looks. The first keeps what was used just now; the second keeps
// what steady use will want again.
#include "engine/heap/heap.h"
#include "engine/heap/idle_rule.h"

namespace gmm {

// Stamps the extents that lie whole in free memory, whatever streams it waits for; `since` when the last look did not
// see them free.
void Heap::stamp_free_extents(uint64_t since) {
  runs_.free().for_each([&](Span *first) {
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
  const uint64_t drained = caches.drain_idle(now, age);
  uint64_t low = 0;
  {
    LockGuard guard(mutex);
    // What became free just now came from the idle caches, where nobody used it for the age.
    if (drained != 0) stamp_free_extents(now - age);
    low = runs_.free().take_low();
  }
  const uint64_t may_go = low_water_.note(low, now, age) + drained;
  low_water_.add(drained);
  return may_go;
}

Status Heap::release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released) {
  LockGuard guard(mutex);
  if ((at_most == 0 && runs_.dedicated().empty()) || streams_.any_capturing()) return Status();
  clear_done_streams();
  const IdleRule rule{now, age, at_most, look_};
  const Status status = release_free_locked(at_most < slice ? at_most : slice, released, &rule);
  low_water_.subtract(*released);
  return status;
}

}  // namespace gmm
