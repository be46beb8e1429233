// SPDX-License-Identifier: Apache-2.0
// The heaps of a context, for the features that go through all of them.
//
// A visit keeps one heap from ending. So an operation may wait with a heap that it visits, and holds no lock that the
// rest of the context needs. A heap ends when its visits have ended; visits that want to begin before wait for the
// outcome.
#ifndef GMM_ENGINE_HEAP_HEAP_SET_H
#define GMM_ENGINE_HEAP_HEAP_SET_H

#include <gmm/stats.h>

#include <algorithm>

#include "base/vector.h"
#include "engine/heap/heap.h"

namespace gmm {

class HeapSet : NoCopy {
 public:
  explicit HeapSet(const HostAllocator &allocator) : entries_(allocator) {}

  // False: there is no host memory.
  [[nodiscard]] bool add(Heap &heap) {
    LockGuard guard(mutex_);
    return entries_.push_back(Entry{&heap, ++last_number_, 0, false, false});
  }
  // True when nobody visits the heap. No visit begins before finish_end(), which removes the heap if it ended. The
  // caller visits no heap. False: an operation that visits the heap is held, and the thread that decides about it may
  // wait for the caller.
  [[nodiscard]] bool begin_end(const Heap &heap) {
    LockGuard guard(mutex_);
    const uint64_t index = find(heap);
    if (index == entries_.size()) return true;
    const uint64_t number = entries_[index].number;
    entries_[index].is_ending = true;
    for (;;) {
      Entry &entry = entries_[at_or_behind(number)];
      if (entry.visits == 0) return true;
      if (entry.is_held) {
        entry.is_ending = false;
        changed_.notify_all();
        return false;
      }
      changed_.wait(mutex_);
    }
  }
  // The caller visits the heap.
  void set_held(const Heap &heap, bool is_held) {
    LockGuard guard(mutex_);
    entries_[find(heap)].is_held = is_held;
    changed_.notify_all();
  }
  void finish_end(const Heap &heap, bool has_ended) {
    LockGuard guard(mutex_);
    const uint64_t index = find(heap);
    if (index == entries_.size()) return;
    entries_[index].is_ending = false;
    if (has_ended) entries_.erase(index);
    changed_.notify_all();
  }
  // Removes a heap that nobody visits. False: somebody does.
  [[nodiscard]] bool remove_unless_visited(const Heap &heap) {
    LockGuard guard(mutex_);
    const uint64_t index = find(heap);
    if (index == entries_.size()) return true;
    if (entries_[index].visits != 0 || entries_[index].is_ending) return false;
    entries_.erase(index);
    return true;
  }
  // For the end of the context, where no other thread is: the newest heap leaves the set. NULL: it is empty.
  Heap *remove_last() {
    LockGuard guard(mutex_);
    return entries_.empty() ? nullptr : entries_.pop_back().heap;
  }

  // --- One visit ---------------------------------------------------------------------------------------------------
  // Begins a visit of the heap if it is in the set. False: it is ending, has ended, or does not belong here. Never
  // waits.
  [[nodiscard]] bool try_enter(const Heap *heap) {
    LockGuard guard(mutex_);
    const uint64_t index = heap == nullptr ? entries_.size() : find(*heap);
    if (index == entries_.size() || entries_[index].is_ending) return false;
    ++entries_[index].visits;
    return true;
  }
  // Begins a visit of the next heap behind *number, from 0 on, of which wanted(const Heap &) is true, and sets *number
  // to its own. NULL: there is none. A heap that is ending is waited for, or passed by.
  template <typename Fn>
  Heap *enter_next_of(uint64_t *number, Fn wanted, bool may_wait = true) {
    return enter(number, may_wait, [&](const Entry &entry) {
      return !wanted(*entry.heap) ? When::kNever : entry.is_ending ? When::kLater : When::kNow;
    });
  }
  // Ends a visit.
  void leave(uint64_t number) {
    LockGuard guard(mutex_);
    leave_entry(entries_[at_or_behind(number)]);
  }
  void leave(const Heap &heap) {
    LockGuard guard(mutex_);
    leave_entry(entries_[find(heap)]);
  }

  // Calls fn(Heap &) in a short visit of each heap, by age. A heap whose end waits for other visits is visited too,
  // as that wait may be long; the end itself is waited for.
  template <typename Fn>
  void for_each_even_ending(Fn fn) {
    uint64_t number = 0;
    const auto when = [](const Entry &entry) {
      return entry.is_ending && entry.visits == 0 ? When::kLater : When::kNow;
    };
    while (Heap *heap = enter(&number, true, when)) {
      fn(*heap);
      leave(number);
    }
  }
  // Calls fn(Heap &) -> Status in a visit of each heap, by age. The first failure ends it.
  template <typename Fn>
  Status for_each(Fn fn, bool may_wait = true) {
    Status status;
    uint64_t number = 0;
    const auto any = [](const Heap &) { return true; };
    while (status.ok()) {
      Heap *heap = enter_next_of(&number, any, may_wait);
      if (heap == nullptr) break;
      status = fn(*heap);
      leave(number);
    }
    return status;
  }
  template <typename Fn>
  Status for_each(const gmm_scope_desc &scope, Fn fn, bool may_wait = true) {
    return for_each([&](Heap &heap) -> Status { return in_scope(heap, scope) ? fn(heap) : Status(); }, may_wait);
  }

  static bool in_scope(const Heap &heap, const gmm_scope_desc &scope) {
    const HeapOptions &options = heap.options();
    if ((scope.flags & GMM_SCOPE_DEVICE) != 0 && options.device.ordinal != scope.device) return false;
    if ((scope.flags & GMM_SCOPE_TAG) != 0 && options.tag != scope.tag) return false;
    return (scope.flags & GMM_SCOPE_KIND) == 0 || options.kind == static_cast<Kind>(scope.kind);
  }

 private:
  struct Entry {
    Heap *heap;
    uint64_t number;  // ascending, never used again
    uint32_t visits;
    bool is_ending;
    bool is_held;  // an operation that visits it is held
  };
  enum class When { kNow, kLater, kNever };
  // when(const Entry &) -> When.
  template <typename Fn>
  Heap *enter(uint64_t *number, bool may_wait, Fn when) {
    LockGuard guard(mutex_);
    for (uint64_t i = at_or_behind(*number + 1); i < entries_.size();) {
      const When next = when(entries_[i]);
      if (next == When::kNow) {
        ++entries_[i].visits;
        *number = entries_[i].number;
        return entries_[i].heap;
      }
      if (next == When::kLater && may_wait) {
        changed_.wait(mutex_);
        i = at_or_behind(*number + 1);
      } else {
        ++i;
      }
    }
    return nullptr;
  }
  void leave_entry(Entry &entry) {
    if (--entry.visits == 0 && entry.is_ending) changed_.notify_all();
  }
  // With mutex_ held. The number of entries: there is none.
  uint64_t at_or_behind(uint64_t number) const {
    const auto precedes = [](const Entry &entry, uint64_t least) { return entry.number < least; };
    return static_cast<uint64_t>(std::lower_bound(entries_.begin(), entries_.end(), number, precedes) -
                                 entries_.begin());
  }
  uint64_t find(const Heap &heap) const {
    uint64_t i = 0;
    while (i < entries_.size() && entries_[i].heap != &heap) ++i;
    return i;
  }

  Mutex mutex_{LockRank::kHeapSet};
  Condition changed_;
  Vector<Entry> entries_;  // by number
  uint64_t last_number_ = 0;
};

// A visit as try_enter() begins it. `heap` is NULL where there is none.
class HeapVisit : NoCopy {
 public:
  HeapVisit(HeapSet &set, Heap *of) : heap(set.try_enter(of) ? of : nullptr), set_(set) {}
  ~HeapVisit() {
    if (heap != nullptr) set_.leave(*heap);
  }
  Heap *const heap;

 private:
  HeapSet &set_;
};

}  // namespace gmm
#endif
