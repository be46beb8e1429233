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
  // UNCHANGED: nothing was paused. is_last: a resume that lacks memory is not tried again, so the watchers hear of the
  // failure.
  Status resume(bool is_last, uint64_t *bytes) {
    const Status status = resume_heaps(bytes);
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
  // Whether the transition changes what is watched: extents in the state, in the ranges where there are any.
  bool touches(const WatchTarget &target, bool paused) {
    for (HeapTransition *each : heaps_)
      if (!target.is_range() && each->heap().options().tag == target.tag) return true;
    if (!request_.has_ranges()) return touches_range(target.range, paused);
    for (uint32_t i = 0; i < request_.range_count; ++i) {
      const uintptr_t begin = std::max(target.range.base, request_.ranges[i].base);
      const uintptr_t end = std::min(target.range.end(), request_.ranges[i].end());
      if (begin < end && touches_range(ByteRange{begin, end - begin}, paused)) return true;
    }
    return false;
  }
  bool touches_range(ByteRange range, bool paused) {
    for (uintptr_t at = range.base; at < range.end();) {
      const auto [extent, place] = context_.core.page_map.find_place(at);
      at = place.end();
      if (extent == nullptr) {  // a gap, or the block was freed
        if (paused && request_.has_ranges()) return true;
        continue;
      }
      const Heap *heap = heap_of(region_of(extent));
      if (is_paused(*extent) == paused)
        for (HeapTransition *each : heaps_)
          if (&each->heap() == heap) return true;
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
    calls_.select([&](const WatchTarget &target) { return touches(target, false); });
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
      any = any || heap->has_dropped;
    }
    if (status.ok() && !any && *bytes == 0) return unchanged("gmm_pause(): no memory of these tags was active.");
    return status;
  }

  // --- A resume ---

  // Leaves out the heaps that have no paused memory. CAPTURING: a capture uses one of the tags.
  Status check_resume() {
    Status captured;  // also of heaps without paused memory: the tag is in use
    for (uint64_t i = heaps_.size(); i-- > 0;) {
      bool paused = false;
      const Status status = heaps_[i]->check_resume(&paused);
      if (captured.ok() && (paused || !request_.has_ranges())) captured = status;
      if (!paused) erase(i);
    }
    return heaps_.empty() ? Status() : captured;
  }
  Status take_pages_and_hold() {
    lock();
    Status status;
    for (HeapTransition *heap : heaps_) {
      if (status.ok()) status = heap->plan_resume();
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
  Status plan_and_restore(bool *any) {
    for (HeapTransition *heap : heaps_) {
      GMM_TRY(heap->plan_resume());
      progress_.add_total(heap->bytes());
      *any = *any || heap->extent_count() != 0;
    }
    for (HeapTransition *heap : heaps_) GMM_TRY(heap->charge());
    progress_.begin();
    return run(progress_, &HeapTransition::restore);
  }
  Status resume_heaps(uint64_t *bytes) {
    *bytes = 0;
    context_.core.deferred_release.retry(*context_.core.backend);  // mappings that stand where memory comes back
    GMM_TRY(add_named());
    GMM_TRY(check_resume());
    calls_.select([&](const WatchTarget &target) { return !request_.prepares() && touches(target, true); });
    calls_.reach_all();
    for (HeapTransition *each : heaps_)
      context_.core.ask_for_spares(each->device(), each->wanted_bytes(), &each->heap());
    if (request_.holds()) GMM_TRY(take_pages_and_hold());
    lock();
    bool any = false;
    const Status status = plan_and_restore(&any);
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

// The driver takes an allocation back whole.
Status check_range_to_pause(const ByteRange &range, const Block &block, const PageMap::Place &place) {
  const uintptr_t end = block.base + block.reserved;
  if (block.elastic == nullptr)
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_pause_range(0x%" PRIxPTR "): only a block of GMM_ALLOC_PAUSED can be paused in part; pause a tag.",
                range.base);
  if (range.end() > end)
    return fail(GMM_ERROR_INVALID_SIZE,
                "gmm_pause_range(0x%" PRIxPTR "): %" PRIu64 " bytes reach past the block, which ends at 0x%" PRIxPTR
                "; pass a range of each block.",
                range.base, range.size, end);
  const uintptr_t first = place.range.base;
  const uintptr_t last = place.extent == nullptr ? Extents::rounded(range.end()) : place.range.end();
  const bool is_whole = range.base <= first && (range.end() >= last || range.end() >= block.base + block.requested);
  if (is_whole) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              "gmm_pause_range(0x%" PRIxPTR ", %" PRIu64 "): the range cuts the driver's allocation from 0x%" PRIxPTR
              " to 0x%" PRIxPTR "; pass whole ones, as gmm_query() tells them.",
              range.base, range.size, first, last);
}

}  // namespace

Status Pauser::pause(const PauseRequest &request, uint64_t *bytes) {
  return Transition(*this, request, request.has_ranges() ? "gmm_pause_range()" : "gmm_pause()").pause(bytes);
}

Status Pauser::resume(const PauseRequest &request, bool is_last, uint64_t *bytes) {
  const char *function = request.has_ranges() ? "gmm_resume_range()" : "gmm_resume()";
  return Transition(*this, request, function).resume(is_last, bytes);
}

Status Pauser::add_tags(bool is_pause, PauseRequest *request, Vector<gmm_tag> *tags) {
  for (uint32_t i = 0; i < request->range_count; ++i) {
    const ByteRange &range = request->ranges[i];
    for (uintptr_t at = range.base; at < range.end();) {
      const PageMap::Place place = core.page_map.find_place(at);
      Block block;
      Heap *heap = is_pause ? nullptr : heap_of(region_of(place.extent));
      if (heap == nullptr && find_block(core, reinterpret_cast<void *>(at), &block)) heap = block.heap;
      const HeapVisit visit(heaps, heap);
      if (visit.heap == nullptr)
        return fail(GMM_ERROR_UNKNOWN_POINTER,
                    "The range at 0x%" PRIxPTR " of %" PRIu64 " bytes: 0x%" PRIxPTR
                    " is not memory of this context; pass parts of live blocks.",
                    range.base, range.size, at);
      if (is_pause) GMM_TRY(check_range_to_pause(range, block, place));
      at = place.range.end();
      if (block.elastic != nullptr) {  // what lies between the ends is whole, and of this heap
        at = std::min(range.end(), block.base + block.reserved);
        if (is_pause) GMM_TRY(check_range_to_pause(range, block, core.page_map.find_place(at - 1)));
      }
      const gmm_tag tag = visit.heap->options().tag;
      if (std::find(tags->begin(), tags->end(), tag) == tags->end() && !tags->push_back(tag))
        return no_memory_for_plan();
    }
  }
  if (request->has_ranges()) {
    request->tags = tags->data();
    request->count = static_cast<uint32_t>(tags->size());
  }
  return Status();
}

}  // namespace gmm
