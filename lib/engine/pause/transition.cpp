// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/transition.h"

#include <cinttypes>
#include <functional>

#include "engine/pause/by_device.h"

namespace gmm {

// --- The heaps ------------------------------------------------------------------------------------------------------

Status Transition::add(Heap &heap) {
  const auto priority = [](HeapTransition &of) { return of.tag().priority.load(std::memory_order_relaxed); };
  HeapTransition *added = context_.core.allocator.create<HeapTransition>(context_, request_, heap);
  if (added != nullptr) {
    uint64_t at = heaps_.size();
    while (at > 0 && priority(*heaps_[at - 1]) < priority(*added)) --at;
    if (heaps_.insert(at, added)) return Status();
    context_.core.allocator.destroy(added);
  }
  context_.heaps.leave(heap);
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
}

Status Transition::add_named() {
  uint64_t number = 0;
  while (Heap *heap =
             context_.heaps.enter_next_of(&number, [&](const Heap &candidate) { return request_.names(candidate); }))
    GMM_TRY(add(*heap));
  return Status();
}

Status Transition::add_range(const ByteRange &range) {
  for (uintptr_t at = range.base; at < range.end();) {
    const Extent *extent = context_.core.page_map.find_extent(at);
    Heap *heap = heap_of(region_of(extent));
    if (!context_.heaps.try_enter(heap)) return not_of_context(range, at);
    at = end_of(*extent);
    // The request has the tags of the range. Another heap may have got a part of it since.
    if (request_.names(*heap) && !contains(*heap))
      GMM_TRY(add(*heap));
    else
      context_.heaps.leave(*heap);
  }
  return Status();
}

void Transition::erase(uint64_t index) {
  context_.heaps.leave(heaps_[index]->heap());
  context_.core.allocator.destroy(heaps_[index]);
  heaps_.erase(index);
}

bool Transition::contains(const Heap &heap) {
  for (HeapTransition *each : heaps_)
    if (&each->heap() == &heap) return true;
  return false;
}

// Only the holder of the heaps' tags (tag_claims.h) locks more than one of them, so any order is safe. They are locked
// in the order of their addresses, as a thread sanitizer does not know the claim as a reason.
void Transition::lock() {
  for (Heap *last = nullptr;;) {
    Heap *next = nullptr;
    for (HeapTransition *each : heaps_) {
      Heap *heap = &each->heap();
      if (std::less<Heap *>()(last, heap) && (next == nullptr || std::less<Heap *>()(heap, next))) next = heap;
    }
    if (next == nullptr) break;
    next->lock_for_operation();
    last = next;
  }
  is_locked_ = true;
}

void Transition::unlock() {
  for (HeapTransition *each : heaps_) each->heap().mutex.unlock();
  is_locked_ = false;
}

void Transition::set_held(bool is_held) {
  for (HeapTransition *each : heaps_) context_.heaps.set_held(each->heap(), is_held);
  is_held_ = is_held;
}

void Transition::leave_heaps() {
  if (is_locked_) unlock();
  if (is_held_) set_held(false);
  while (!heaps_.empty()) erase(heaps_.size() - 1);
}

Status Transition::run(TransitionProgress &progress, Step step) {
  return ByDevice(context_.core, heaps_).run(progress, step);
}

bool Transition::touches(const WatchTarget &target, bool paused, const ByteRange *within) {
  for (HeapTransition *each : heaps_)
    if (!target.is_range() && each->heap().options().tag == target.tag) return true;
  for (uintptr_t at = target.range.base; at < target.range.end();) {
    const Extent *extent = context_.core.page_map.find_extent(at);
    const Heap *heap = heap_of(region_of(extent));
    if (heap == nullptr) return false;  // the block was freed
    const bool is_inside = within == nullptr || (base_of(*extent) < within->end() && within->base < end_of(*extent));
    if (is_inside && is_paused(*extent) == paused && contains(*heap)) return true;
    at = end_of(*extent);
  }
  return false;
}

Status Transition::hold(Status status) {
  for (HeapTransition *heap : heaps_) heap->forget_plan();
  set_held(true);
  unlock();
  if (status.ok()) status = request_.ticket->hold(request_.hold_ms);
  set_held(false);
  return status;
}

// --- A pause --------------------------------------------------------------------------------------------------------

Status Transition::pause(uint64_t *bytes) {
  const Status status = pause_heaps(bytes);
  leave_heaps();
  calls_.end(status, false);
  return status;
}

Status Transition::check_pause() {
  for (uint64_t i = heaps_.size(); i-- > 0;) {
    bool active = false;
    GMM_TRY(heaps_[i]->check_pause(&active));
    if (!active) erase(i);
  }
  return Status();
}

Status Transition::synchronize() {
  for (HeapTransition *heap : heaps_) GMM_TRY(context_.core.backend->synchronize(heap->device()));
  return Status();
}

Status Transition::detach() {
  for (HeapTransition *heap : heaps_) GMM_TRY(heap->detach());
  if (!calls_.any()) return Status();
  calls_.losing();
  return synchronize();
}

Status Transition::keep_and_hold() {
  lock();
  Status status;
  for (HeapTransition *heap : heaps_) {
    if (status.ok()) status = heap->plan_pause();
    progress_.add_total(heap->bytes());
  }
  progress_.begin();
  if (status.ok()) status = run(progress_, &HeapTransition::keep);
  for (HeapTransition *heap : heaps_) heap->heap().paused().refuse_importers();
  status = hold(status);
  return status.ok() && (request_.flags & GMM_PAUSE_NO_WRITES) == 0 ? synchronize() : status;
}

Status Transition::plan_and_save(TransitionProgress &progress, bool *any) {
  for (HeapTransition *heap : heaps_) {
    GMM_TRY(heap->plan_pause());
    progress.add_total(heap->bytes());
    *any = *any || heap->extent_count() != 0;
  }
  progress.begin();
  return run(progress, &HeapTransition::save);
}

Status Transition::pause_heaps(uint64_t *bytes) {
  *bytes = 0;
  context_.core.deferred_release.retry(*context_.core.backend);
  GMM_TRY(add_named());
  GMM_TRY(check_pause());
  if (heaps_.empty()) {
    if (request_.holds()) GMM_TRY(request_.ticket->hold(request_.hold_ms));
    return unchanged("gmm_pause(): no memory of these tags was active.");
  }
  calls_.select([&](const WatchTarget &target) { return touches(target, false, nullptr); });
  GMM_TRY(calls_.prepare());
  Status status = detach();
  if (status.ok() && request_.holds()) status = keep_and_hold();
  lock();
  bool any = false;
  // A commit tells nobody of its copies, which were counted before.
  const PauseRequest silently{};
  TransitionProgress uncounted(silently);
  if (status.ok()) status = plan_and_save(request_.holds() ? uncounted : progress_, &any);
  if (status.ok()) run(uncounted, &HeapTransition::commit_pause).ignore();  // it never fails
  for (HeapTransition *heap : heaps_) {
    if (!status.ok()) heap->undo_pause();
    heap->attach_active();
    *bytes += heap->moved;
  }
  if (status.ok() && !any && *bytes == 0) return unchanged("gmm_pause(): no memory of these tags was active.");
  return status;
}

// --- A resume -------------------------------------------------------------------------------------------------------

Status Transition::resume(const ByteRange *range, bool is_last, uint64_t *bytes) {
  const Status status = resume_heaps(range, bytes);
  leave_heaps();
  const bool comes_again =
      !is_last && (status.code() == GMM_ERROR_OUT_OF_MEMORY || status.code() == GMM_ERROR_LIMIT_EXCEEDED);
  // UNCHANGED: what was paused has no live block.
  if (comes_again || status.code() == GMM_UNCHANGED)
    calls_.end(Status(), false);  // no watcher hears of it
  else
    calls_.end(status, true);
  return status;
}

Status Transition::check_resume() {
  Status captured;  // also of heaps without paused memory: the tag is in use
  for (uint64_t i = heaps_.size(); i-- > 0;) {
    bool paused = false;
    const Status status = heaps_[i]->check_resume(&paused);
    if (captured.ok()) captured = status;
    if (!paused) erase(i);
  }
  return heaps_.empty() ? Status() : captured;
}

Status Transition::take_pages_and_hold() {
  lock();
  Status status;
  for (HeapTransition *heap : heaps_) {
    if (status.ok()) status = heap->plan_resume(nullptr);
    if (status.ok()) status = heap->take_pages();
  }
  status = hold(status);
  if (status.ok()) return status;
  lock();
  for (HeapTransition *heap : heaps_) {
    heap->return_pages();
    heap->attach_active();  // the plan gave up paused memory without a live block
    heap->heap().paused().end_empty_regions();
  }
  return status;
}

Status Transition::plan_and_restore(const ByteRange *range, bool *any) {
  for (HeapTransition *heap : heaps_) {
    GMM_TRY(heap->plan_resume(range));
    progress_.add_total(heap->bytes());
    *any = *any || heap->extent_count() != 0;
  }
  for (HeapTransition *heap : heaps_) GMM_TRY(heap->charge());
  progress_.begin();
  return run(progress_, &HeapTransition::restore);
}

Status Transition::resume_heaps(const ByteRange *range, uint64_t *bytes) {
  *bytes = 0;
  context_.core.deferred_release.retry(*context_.core.backend);  // mappings that stand where memory comes back
  GMM_TRY(range == nullptr ? add_named() : add_range(*range));
  GMM_TRY(check_resume());
  calls_.select([&](const WatchTarget &target) { return touches(target, true, range); });
  calls_.reach_all();
  if (request_.holds()) GMM_TRY(take_pages_and_hold());
  lock();
  bool any = false;
  const Status status = plan_and_restore(range, &any);
  for (HeapTransition *heap : heaps_) {
    if (status.ok()) {
      heap->commit_resume();
    } else {
      heap->undo_resume();
      heap->return_pages();
    }
    heap->attach_active();
    heap->heap().paused().end_empty_regions();
    *bytes += heap->moved;
  }
  if (!status.ok()) return status;
  if (!any) return unchanged("gmm_resume(): no memory of these tags was paused.");
  return Status();
}

}  // namespace gmm
