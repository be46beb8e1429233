// SPDX-License-Identifier: Apache-2.0
// A pause: one transaction over the heaps that a request names. Pauser runs it and holds the claim of the tags.
#ifndef GMM_ENGINE_PAUSE_PAUSE_H
#define GMM_ENGINE_PAUSE_PAUSE_H

#include "engine/heap/heap_set.h"
#include "engine/pause/by_device.h"
#include "engine/pause/heap_transition.h"
#include "engine/pause/request.h"

namespace gmm {

// The pause of one heap.
class HeapPause : public HeapTransition {
 public:
  using HeapTransition::HeapTransition;

  // BUSY, CAPTURING: the heap cannot be paused now. *active: there is something to do. Takes the lock of the heap.
  Status check(uint32_t flags, bool *active);
  // Takes free memory out of use, empties the thread caches and waits for the device: what the heap's memory was used
  // for is done, and allocations go to new regions. Takes the lock of the heap.
  Status detach();
  // Plans the active extents of detached regions, with places for the contents that the backup keeps. Memory that came
  // since detach() is in use and stays. BUSY: importers came since check().
  Status plan(uint32_t flags);
  // Copies the contents out and unmaps what is out.
  Status save(HeapProgress &progress);
  // Copies the contents out ahead of a hold, and unmaps nothing. A save() after it copies again what the program may
  // have written. undo() drops them.
  Status keep(uint32_t flags, HeapProgress &progress);
  // Releases the handles of unmapped extents, and returns how many bytes the device got back. A handle that the driver
  // does not release stays with its extent for the next call.
  uint64_t commit();
  // Maps the extents again that save() unmapped, and drops what it saved, as the contents may change from now on.
  void undo();

 private:
  Status check_importers(uint32_t importers, uint32_t flags);
  Status copy_out(HeapProgress &progress, bool unmaps);
  // After a hold a mapping that the driver does not take back stays with its extent, for the next call.
  Status unmap_planned(uint64_t first, uint64_t count);
  Status unmap_through(uint64_t index);  // the extents whose contents are out, in groups
  [[nodiscard]] bool ensure_kept(Extent &extent);
  // Drops what active memory has kept.
  void drop_kept();

  gmm_contents contents_ = GMM_CONTENTS_DROP;  // what becomes of them this time
  uint64_t offered_ = 0;                       // extents that were offered to unmap()
  bool saved_ = false;                         // the contents of all extents are out
  bool has_kept_ = false;                      // by keep()
  SavePass next_pass_ = SavePass::kOnly;
};

class Pause {
 public:
  Pause(const TransitionContext &context, HeapSet &set, const PauseRequest &request)
      : context_(context), request_(request), progress_(request), heaps_(context, set) {}

  // Pauses all or nothing. UNCHANGED: nothing was active. The caller tells the watchers how it ended.
  Status run(WatchCalls &calls, uint64_t *bytes);

 private:
  // Selects the heaps of the request that have active memory.
  Status select();
  Status detach();
  // The watchers have agreed, and the devices are idle again.
  Status tell_losing(WatchCalls &calls);
  // Keeps all contents and waits for the decision, without the locks of the heaps.
  Status keep_and_hold();
  Status plan_and_save(TransitionProgress &progress, bool *any);

  ByDevice<HeapPause> by_device() { return {context_.core, heaps_.begin(), heaps_.size()}; }

  const TransitionContext context_;
  const PauseRequest &request_;
  TransitionProgress progress_;
  HeapTransitions<HeapPause> heaps_;
};

}  // namespace gmm
#endif
