// SPDX-License-Identifier: Apache-2.0
// A resume: one transaction over the heaps that a request names, or over a range. Pauser runs it and
// holds the claim of the tags.
#ifndef GMM_ENGINE_PAUSE_RESUME_H
#define GMM_ENGINE_PAUSE_RESUME_H

#include "engine/heap/heap_set.h"
#include "engine/pause/by_device.h"
#include "engine/pause/heap_transition.h"
#include "engine/pause/request.h"

namespace gmm {

// The resume of one heap.
class HeapResume : public HeapTransition {
 public:
  using HeapTransition::HeapTransition;

  bool has_paused();
  // Plans the paused extents, of the range where there is one. Without a range the heap gives up paused memory that has
  // no live block, and what may be one handle becomes one.
  Status plan(const ByteRange *range);
  // Charges the quotas for all of it, before anything is made. LIMIT_EXCEEDED: undo() refunds what was charged.
  Status charge();
  // Charges and makes the planned memory, and maps nothing. restore() of a later plan finds it. A failure leaves
  // nothing.
  Status charge_and_hold();
  // Returns the pages of charge_and_hold(). Those that the driver does not take back stay for the next resume.
  void let_go();
  // Makes and maps memory, and fills it. gmm_resume_wait() may return for extents that are filled.
  Status restore(HeapProgress &progress);
  // Returns the bytes that were charged.
  // retain: GMM_RESUME_RETAIN.
  uint64_t commit(bool retain);
  // Pauses everything again but the extents that gmm_resume_wait() promised to a caller, whose bytes it adds to *bytes.
  void undo(uint64_t *bytes);

 private:
  Status charge_and_make();
  Status make_pages(Extent &extent);    // unless it has them
  Status back_through(uint64_t index);  // memory for the extents up to this one, and for some that follow
  // Drops the contents of the restored extents, but for whole large blocks of a read-only tag, or of any with retain.
  void forget_restored(bool retain);
  // Drops the chunks that lie outside large blocks, and the views there.
  void drop_outside_large_blocks();

  uint64_t backed_ = 0;    // extents that have memory
  bool has_held_ = false;  // by charge_and_hold()
};

class Resume {
 public:
  Resume(const TransitionContext &context, HeapSet &set, const PauseRequest &request)
      : context_(context), set_(set), request_(request), progress_(request), heaps_(context, set) {}

  // Resumes all or nothing, but for extents that gmm_resume_wait() promised, in the heaps that the request names.
  // `range`: only the extents that it touches, or NULL. UNCHANGED: nothing was paused. The caller tells the watchers
  // how it ended.
  Status run(const ByteRange *range, WatchCalls &calls, uint64_t *bytes);

 private:
  Status select_range(const ByteRange &range);
  // Leaves out the heaps that have no paused memory. CAPTURING: a capture uses one of the tags.
  Status check();
  // Takes the pages of all heaps and waits for the decision, without the locks of the heaps.
  Status take_pages_and_hold();
  Status plan_and_restore(const ByteRange *range, uint64_t *extents);

  const TransitionContext context_;
  HeapSet &set_;
  const PauseRequest &request_;
  TransitionProgress progress_;
  HeapTransitions<HeapResume> heaps_;
};

}  // namespace gmm
#endif
