// SPDX-License-Identifier: Apache-2.0
// The extents of one heap that change state together, and the set of the heaps of one transaction.
#ifndef GMM_ENGINE_PAUSE_HEAP_TRANSITION_H
#define GMM_ENGINE_PAUSE_HEAP_TRANSITION_H

#include <functional>

#include "engine/backup/store.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"
#include "engine/pause/ready_signal.h"
#include "engine/watch/watchers.h"

namespace gmm {

// The objects of a context that a transition uses.
struct TransitionContext {
  Core &core;
  BackupStore &backups;
  TagTable &tags;
  ReadySignal &ready;
};

// Gives up the paused memory of a heap that has no live block, with what is kept of it, and returns addresses that hold
// nothing. With the lock of the heap.
void give_up_freed(Heap &heap, ReadySignal &ready);

// HeapPause (pause.h) and HeapResume (resume.h) add the steps of their transaction. Every function but check_capture()
// needs the lock of the heap until the transition ends.
class HeapTransition {
 public:
  HeapTransition(const TransitionContext &context, Heap &heap)
      : context_(context),
        heap_(heap),
        extents_(context.core.allocator),
        ranges_(context.core.allocator),
        blocks_(context.core.allocator),
        parts_(context.core.allocator) {}
  HeapTransition(const HeapTransition &) = delete;
  HeapTransition &operator=(const HeapTransition &) = delete;

  Heap &heap() { return heap_; }
  Tag &tag() { return *context_.tags.get(heap_.options().tag); }
  uint64_t extent_count() const { return extents_.size(); }
  // Live bytes that the backup copies.
  uint64_t bytes() const { return bytes_; }
  // CAPTURING: a stream that uses the heap is being captured. With the lock of the heap.
  Status check_capture(const char *operation);
  // The lock goes, and then extents may end. A further plan begins anew.
  void forget_plan() {
    extents_.clear();
    parts_.clear();
    bytes_ = 0;
  }
  // The transition ended. The heap allocates again from regions of which every extent is active.
  void attach_active();

 protected:
  struct PlannedExtent {
    Extent *extent;
    ExtentState before;
    bool charged = false;  // a resume charged the quotas for it
  };

  [[nodiscard]] bool plan(Extent &extent) {
    return extents_.push_back(PlannedExtent{&extent, extent.state.load(std::memory_order_relaxed)});
  }
  void sort_planned();
  // Finds the live memory of the planned extents and divides it into one part an extent, for the backup.
  Status plan_live_ranges();
  // Unmaps planned extents, neighbours by one call. After a failure those before it stay unmapped.
  Status unmap(uint64_t first, uint64_t count);
  // Maps those that are not mapped, and allows access to neighbours by one call. After a failure what this call mapped
  // is unmapped again, as far as the driver does that.
  Status map(uint64_t first, uint64_t count);

  const TransitionContext context_;
  Heap &heap_;
  Vector<PlannedExtent> extents_;  // by address
  Vector<ByteRange> ranges_;       // live memory in them
  Vector<uintptr_t> blocks_;       // where the block of a range begins, when each has a file of its own
  Vector<BackupPart> parts_;       // one an extent, once plan_live_ranges() made the ranges
  uint64_t bytes_ = 0;             // of the ranges
};

// The heaps of a transaction in the order of their tags' priorities. The end of the set unlocks them.
template <typename T>
class HeapTransitions {
 public:
  HeapTransitions(const TransitionContext &context, HeapSet &set)
      : context_(context), set_(set), heaps_(context.core.allocator) {}
  ~HeapTransitions() {
    if (locked_) unlock();
    if (is_held_) set_held(false);
    for (T *each : heaps_) {
      set_.leave(each->heap());
      context_.core.allocator.destroy(each);
    }
  }
  HeapTransitions(const HeapTransitions &) = delete;
  HeapTransitions &operator=(const HeapTransitions &) = delete;
  // Adds the heaps of the set of which wanted(const Heap &) is true.
  template <typename Fn>
  Status add_from_set(Fn wanted) {
    uint64_t number = 0;
    while (Heap *heap = set_.enter_next_of(&number, wanted)) GMM_TRY(add(*heap));
    return Status();
  }
  // Adds the heap behind those of the same priority or higher. The caller visits it; the visit ends with erase(), with
  // the set, or when this fails.
  Status add(Heap &heap) {
    const auto priority = [](T &of) { return of.tag().priority.load(std::memory_order_relaxed); };
    T *added = context_.core.allocator.template create<T>(context_, heap);
    if (added != nullptr) {
      uint64_t at = heaps_.size();
      while (at > 0 && priority(*heaps_[at - 1]) < priority(*added)) --at;
      if (heaps_.insert(at, added)) return Status();
      context_.core.allocator.destroy(added);
    }
    set_.leave(heap);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
  }
  // Whether the transition changes what is watched: extents in the state and, where there is one, in `within`.
  bool touches(const WatchTarget &target, bool paused, const ByteRange *within) {
    for (T *each : heaps_)
      if (!target.is_range() && each->heap().options().tag == target.tag) return true;
    for (uintptr_t at = target.range.base; at < target.range.end();) {
      const Extent *extent = context_.core.page_map.find_extent(reinterpret_cast<void *>(at));
      const Heap *heap = heap_of(region_of(extent));
      if (heap == nullptr) return false;  // the block was freed
      const bool is_inside = within == nullptr || (base_of(*extent) < within->end() && within->base < end_of(*extent));
      if (is_inside && is_paused(*extent) == paused && contains(*heap)) return true;
      at = end_of(*extent);
    }
    return false;
  }
  // Before lock().
  void erase(uint64_t index) {
    set_.leave(heaps_[index]->heap());
    context_.core.allocator.destroy(heaps_[index]);
    heaps_.erase(index);
  }
  bool contains(const Heap &heap) {
    for (T *each : heaps_)
      if (&each->heap() == &heap) return true;
    return false;
  }
  // Only the holder of the heaps' tags (tag_claims.h) locks more than one of them, so any order is safe. They are
  // locked in the order of their addresses, as a thread sanitizer does not know the claim as a reason.
  void lock() {
    for (Heap *last = nullptr;;) {
      Heap *next = nullptr;
      for (T *each : heaps_) {
        Heap *heap = &each->heap();
        if (std::less<Heap *>()(last, heap) && (next == nullptr || std::less<Heap *>()(heap, next))) next = heap;
      }
      if (next == nullptr) break;
      next->lock_for_operation();
      last = next;
    }
    locked_ = true;
  }
  void unlock() {
    for (T *each : heaps_) each->heap().mutex.unlock();
    locked_ = false;
  }
  // While the operation is held, the end of these heaps is refused: it might wait for whoever decides.
  void set_held(bool is_held) {
    for (T *each : heaps_) set_.set_held(each->heap(), is_held);
    is_held_ = is_held;
  }
  uint64_t size() const { return heaps_.size(); }
  T &operator[](uint64_t index) { return *heaps_[index]; }
  T **begin() { return heaps_.begin(); }
  T **end() { return heaps_.end(); }

 private:
  const TransitionContext context_;
  HeapSet &set_;
  Vector<T *> heaps_;
  bool locked_ = false;
  bool is_held_ = false;
};

}  // namespace gmm
#endif
