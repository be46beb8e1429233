// SPDX-License-Identifier: Apache-2.0
// One pause or resume: a transaction over the heaps that a request names, or over a range (pauser.h describes both).
#include <algorithm>
#include <cinttypes>
#include <functional>

#include "engine/pause/by_device.h"
#include "engine/pause/pauser.h"

namespace gmm {
namespace {

Status no_memory_for_plan() { return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume."); }

// Holds the claim of the tags from its constructor on.
class Transition : NoCopy {
 public:
  // `function` begins the messages of watchers.
  Transition(TransitionContext &context, const PauseRequest &request, const char *function)
      : context_(context),
        request_(request),
        claim_(context.claims, request.tags, request.count),
        calls_(context.watchers, function),
        progress_(request),
        heaps_(context.core.allocator) {}
  ~Transition() { leave_heaps(); }

  // Pauses all or nothing. UNCHANGED: nothing was active.
  Status pause(uint64_t *bytes) {
    const Status status = pause_heaps(bytes);
    leave_heaps();
    calls_.end(status, false);
    return status;
  }
  // Resumes all or nothing, but for extents that gmm_resume_wait() promised, in the heaps that the request names.
  // `range`: only the extents that it touches, or NULL. UNCHANGED: nothing was paused. is_last: a resume that lacks
  // memory is not tried again, so the watchers hear of the failure.
  Status resume(const ByteRange *range, bool is_last, uint64_t *bytes) {
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

 private:
  // --- The heaps, in the order of their tags' priorities ---

  // Adds each heap that the request names behind those of the same priority or higher.
  Status add_named() {
    const auto is_named = [&](const Heap &heap) { return request_.names(heap); };
    const auto priority = [](HeapTransition &of) { return of.tag().priority.load(std::memory_order_relaxed); };
    uint64_t number = 0;
    while (Heap *heap = context_.heaps.enter_next_of(&number, is_named)) {
      HeapTransition *added = context_.core.allocator.create<HeapTransition>(context_, request_, *heap);
      uint64_t at = heaps_.size();
      while (added != nullptr && at > 0 && priority(*heaps_[at - 1]) < priority(*added)) --at;
      if (added != nullptr && heaps_.insert(at, added)) continue;
      context_.core.allocator.destroy(added);
      context_.heaps.leave(*heap);
      return no_memory_for_plan();
    }
    return Status();
  }
  // Before lock().
  void erase(uint64_t index) {
    context_.heaps.leave(heaps_[index]->heap());
    context_.core.allocator.destroy(heaps_[index]);
    heaps_.erase(index);
  }
  // Only the holder of the heaps' tags (tag_claims.h) locks more than one of them, so any order is safe. They are
  // locked in the order of their addresses, as a thread sanitizer does not know the claim as a reason.
  void lock() {
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
  void unlock() {
    for (HeapTransition *each : heaps_) each->heap().mutex.unlock();
    is_locked_ = false;
  }
  // Unlocks them and ends their visits.
  void leave_heaps() {
    if (is_locked_) unlock();
    while (!heaps_.empty()) erase(heaps_.size() - 1);
  }
  // Runs the step of each heap until one fails, the devices side by side.
  Status run(TransitionProgress &progress, ByDevice::Step step) {
    return ByDevice(context_.core, heaps_).run(progress, step);
  }
  // Whether the transition changes what is watched: extents in the state and, where there is one, in `within`.
  bool touches(const WatchTarget &target, bool paused, const ByteRange *within) {
    for (HeapTransition *each : heaps_)
      if (!target.is_range() && each->heap().options().tag == target.tag) return true;
    for (uintptr_t at = target.range.base; at < target.range.end();) {
      const Extent *extent = context_.core.page_map.find_extent(at);
      const Heap *heap = heap_of(region_of(extent));
      if (heap == nullptr) return false;  // the block was freed
      if (overlaps(*extent, within) && is_paused(*extent) == paused)
        for (HeapTransition *each : heaps_)
          if (&each->heap() == heap) return true;
      at = end_of(*extent);
    }
    return false;
  }
  // The heaps forget their plans. Waits for the decision, without their locks. Until then the end of these heaps is
  // refused: it might wait for whoever decides.
  Status hold(Status status) {
    const auto set_held = [&](bool is_held) {
      for (HeapTransition *each : heaps_) context_.heaps.set_held(each->heap(), is_held);
    };
    for (HeapTransition *heap : heaps_) heap->forget_plan();
    set_held(true);
    unlock();
    if (status.ok()) status = request_.ticket->hold(request_.hold_ms);
    set_held(false);
    return status;
  }

  // --- A pause ---

  Status check_pause() {
    for (uint64_t i = heaps_.size(); i-- > 0;) {
      bool active = false;
      GMM_TRY(heaps_[i]->check_pause(&active));
      if (!active) erase(i);
    }
    return Status();
  }
  Status synchronize() {
    for (HeapTransition *heap : heaps_) GMM_TRY(context_.core.backend->synchronize(heap->device()));
    return Status();
  }
  // The devices are idle, and the watchers have let go of the memory.
  Status detach() {
    for (HeapTransition *heap : heaps_) GMM_TRY(heap->detach());
    if (!calls_.any()) return Status();
    calls_.losing();
    return synchronize();
  }
  Status keep_and_hold() {
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
  Status plan_and_save(TransitionProgress &progress, bool *any) {
    for (HeapTransition *heap : heaps_) {
      GMM_TRY(heap->plan_pause());
      progress.add_total(heap->bytes());
      *any = *any || heap->extent_count() != 0;
    }
    progress.begin();
    return run(progress, &HeapTransition::save);
  }
  Status pause_heaps(uint64_t *bytes) {
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

  // --- A resume ---

  // Leaves out the heaps that have no paused memory. CAPTURING: a capture uses one of the tags.
  Status check_resume(const ByteRange *range) {
    Status captured;  // also of heaps without paused memory: the tag is in use
    for (uint64_t i = heaps_.size(); i-- > 0;) {
      bool paused = false;
      const Status status = heaps_[i]->check_resume(range, &paused);
      if (captured.ok() && (paused || range == nullptr)) captured = status;
      if (!paused) erase(i);
    }
    return heaps_.empty() ? Status() : captured;
  }
  Status take_pages_and_hold() {
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
  Status plan_and_restore(const ByteRange *range, bool *any) {
    for (HeapTransition *heap : heaps_) {
      GMM_TRY(heap->plan_resume(range));
      progress_.add_total(heap->bytes());
      *any = *any || heap->extent_count() != 0;
    }
    for (HeapTransition *heap : heaps_) GMM_TRY(heap->charge());
    progress_.begin();
    return run(progress_, &HeapTransition::restore);
  }
  Status resume_heaps(const ByteRange *range, uint64_t *bytes) {
    *bytes = 0;
    context_.core.deferred_release.retry(*context_.core.backend);  // mappings that stand where memory comes back
    GMM_TRY(add_named());
    GMM_TRY(check_resume(range));
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

  TransitionContext &context_;
  const PauseRequest &request_;
  const TagClaim claim_;
  WatchCalls calls_;
  TransitionProgress progress_;
  Vector<HeapTransition *> heaps_;
  bool is_locked_ = false;
};

}  // namespace

Status Pauser::pause(const PauseRequest &request, uint64_t *bytes) {
  return Transition(*this, request, "gmm_pause()").pause(bytes);
}

Status Pauser::resume(const PauseRequest &request, bool is_last, uint64_t *bytes) {
  return Transition(*this, request, "gmm_resume()").resume(nullptr, is_last, bytes);
}

Status Pauser::resume_range(const void *address, uint64_t size, bool is_last, uint64_t *bytes) {
  const ByteRange range{reinterpret_cast<uintptr_t>(address), size};
  Vector<gmm_tag> tags(core.allocator);  // that have memory in the range
  for (uintptr_t at = range.base; at < range.end();) {
    const Extent *extent = core.page_map.find_extent(at);
    const HeapVisit visit(heaps, heap_of(region_of(extent)));
    if (visit.heap == nullptr)
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_range(%p, %" PRIu64 "): 0x%" PRIxPTR " is not memory of this context.", address, size,
                  at);
    at = end_of(*extent);
    const gmm_tag tag = visit.heap->options().tag;
    if (std::find(tags.begin(), tags.end(), tag) == tags.end() && !tags.push_back(tag)) return no_memory_for_plan();
  }
  PauseRequest request;
  request.tags = tags.data();
  request.count = static_cast<uint32_t>(tags.size());
  return Transition(*this, request, "gmm_resume_range()").resume(&range, is_last, bytes);
}

}  // namespace gmm
