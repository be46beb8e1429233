// SPDX-License-Identifier: Apache-2.0
// One pause or resume: a transaction over the heaps that a request names, or over a range (pauser.h describes both).
#ifndef GMM_ENGINE_PAUSE_TRANSITION_H
#define GMM_ENGINE_PAUSE_TRANSITION_H

#include "engine/pause/heap_transition.h"

namespace gmm {

// Holds the claim of the tags from its constructor on.
class Transition {
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
  Transition(const Transition &) = delete;
  Transition &operator=(const Transition &) = delete;

  // Pauses all or nothing. UNCHANGED: nothing was active.
  Status pause(uint64_t *bytes);
  // Resumes all or nothing, but for extents that gmm_resume_wait() promised, in the heaps that the request names.
  // `range`: only the extents that it touches, or NULL. UNCHANGED: nothing was paused. is_last: a resume that lacks
  // memory is not tried again, so the watchers hear of the failure.
  Status resume(const ByteRange *range, bool is_last, uint64_t *bytes);

 private:
  using Step = Status (HeapTransition::*)();

  // --- The heaps, in the order of their tags' priorities (transition.cpp) ---
  // Adds the heap, which the caller visits, behind those of the same priority or higher.
  Status add(Heap &heap);
  Status add_named();
  Status add_range(const ByteRange &range);
  // Before lock().
  void erase(uint64_t index);
  bool contains(const Heap &heap);
  void lock();
  void unlock();
  // While the operation is held, the end of these heaps is refused: it might wait for whoever decides.
  void set_held(bool is_held);
  // Unlocks them and ends their visits.
  void leave_heaps();
  // Runs the step of each heap until one fails, the devices side by side.
  Status run(TransitionProgress &progress, Step step);
  // Whether the transition changes what is watched: extents in the state and, where there is one, in `within`.
  bool touches(const WatchTarget &target, bool paused, const ByteRange *within);
  // The heaps forget their plans. Waits for the decision, without their locks.
  Status hold(Status status);

  // --- A pause ---
  Status pause_heaps(uint64_t *bytes);
  Status check_pause();
  // The devices are idle, and the watchers have let go of the memory.
  Status detach();
  Status keep_and_hold();
  Status plan_and_save(TransitionProgress &progress, bool *any);
  Status synchronize();

  // --- A resume ---
  Status resume_heaps(const ByteRange *range, uint64_t *bytes);
  // Leaves out the heaps that have no paused memory. CAPTURING: a capture uses one of the tags.
  Status check_resume();
  Status take_pages_and_hold();
  Status plan_and_restore(const ByteRange *range, bool *any);

  TransitionContext &context_;
  const PauseRequest &request_;
  const TagClaim claim_;
  WatchCalls calls_;
  TransitionProgress progress_;
  Vector<HeapTransition *> heaps_;
  bool is_locked_ = false, is_held_ = false;
};

}  // namespace gmm
#endif
