// SPDX-License-Identifier: Apache-2.0
// The state of one heap in a transition, and the steps that pause or resume it.
#ifndef GMM_ENGINE_PAUSE_HEAP_TRANSITION_H
#define GMM_ENGINE_PAUSE_HEAP_TRANSITION_H

#include <algorithm>

#include "engine/backup/store.h"
#include "engine/heap/block.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"
#include "engine/limits/tag_claims.h"
#include "engine/pause/request.h"
#include "engine/watch/watchers.h"

namespace gmm {

// Announces extents whose contents a resume brought back, to the callers of gmm_resume_wait().
class ReadySignal {
 public:
  // The ready lock. It follows the lock of a heap. A resume holds it to change Extent::state and to end paused extents.
  Mutex mutex{LockRank::kReadySignal};

  // The contents of the extent are back: it becomes kRestored, and the callers that wait look again.
  void announce(Extent &extent);
  // Waits until no extent of the range is paused. Restored ones become kPromised, which a failed resume leaves active.
  // NOT_READY: the time passed first. UNKNOWN_POINTER: an address has no extent.
  Status wait(const Core &core, const void *address, uint64_t size, uint64_t timeout_ms);

 private:
  Condition restored_;
};

// The objects of a context that a transition uses.
struct TransitionContext {
  Core &core;
  BackupStore &backups;
  HeapSet &heaps;
  TagTable &tags;
  Watchers &watchers;
  TagClaims claims{LockRank::kPauser};
  ReadySignal ready{};
};

inline void *address_of(const Extent &extent) { return reinterpret_cast<void *>(base_of(extent)); }
// Heap::detach() took the region's free memory out of use.
inline bool is_detached(const Region &region) { return region.paused.load(std::memory_order_relaxed) != 0; }
// With the lock of the heap.
template <typename Fn>
void for_each_extent(Heap &heap, Fn fn) {
  heap.for_each_region([&](Region &region) { for_each_extent(region, fn); });
}

// Bytes of a heap that the backup has. UINT64_MAX: an operation has the heap, and nobody waits for it.
uint64_t kept_bytes(Heap &heap);

// Gives up the paused memory of a heap that has no live block, with what is kept of it, and returns addresses that hold
// nothing. With the lock of the heap.
void give_up_freed(Heap &heap, ReadySignal &ready);

// Every function needs the lock of the heap until the transition ends, unless its comment says that it takes the lock.
class HeapTransition : NoCopy {
 public:
  HeapTransition(TransitionContext &context, const PauseRequest &request, Heap &heap)
      : context_(context),
        request_(request),
        heap_(heap),
        extents_(context.core.allocator),
        ranges_(context.core.allocator),
        blocks_(context.core.allocator),
        parts_(context.core.allocator),
        added_(context.core.allocator) {}

  Heap &heap() { return heap_; }
  Tag &tag() { return *context_.tags.get(heap_.options().tag); }
  Device device() const { return heap_.options().device; }
  uint64_t extent_count() const { return extents_.size(); }
  // Bytes that check_resume() found without pages.
  uint64_t wanted_bytes() const { return wanted_bytes_; }
  // Live bytes that the backup copies.
  uint64_t bytes() const { return bytes_; }
  // The lock goes, and then extents may end. A further plan begins anew.
  void forget_plan();
  // The transition ended. The heap allocates again from regions of which every extent is active.
  void attach_active();
  // From now on a step reports its copies to `progress`. `tells`: its thread is that of the request.
  void begin_step(TransitionProgress &progress, bool tells);
  // All of the heap is copied.
  void end_step() { progress_->add(bytes_ - copied_); }

  // --- A pause (pause.cpp) -------------------------------------------------------------------------------------------
  // BUSY, CAPTURING: the heap cannot be paused now. *active: there is something to do. Takes the lock of the heap.
  Status check_pause(bool *active);
  // Takes free memory out of use, empties the thread caches and waits for the device: what the heap's memory was used
  // for is done, and allocations go to new regions. Takes the lock of the heap.
  Status detach();
  // Plans the active extents of detached regions, with places for the contents that the backup keeps. Memory that came
  // since detach() is in use and stays. BUSY: importers came since check_pause().
  Status plan_pause();
  // Copies the contents out and unmaps what is out.
  Status save();
  // Copies the contents out ahead of a hold, and unmaps nothing. A save() after it copies again what the program may
  // have written. undo_pause() drops them.
  Status keep();
  // Releases the handles of unmapped extents; `moved` counts the bytes that the device got back. A handle that the
  // driver does not release stays with its extent for the next call. It never fails.
  Status commit_pause();
  // Maps the extents again that save() unmapped, and drops what it saved, as the contents may change from now on.
  void undo_pause();

  // --- A resume (resume.cpp) -----------------------------------------------------------------------------------------
  // CAPTURING: a capture uses the heap. *paused: it has paused memory, of the ranges where there are any.
  // Takes the lock of the heap.
  Status check_resume(bool *paused);
  // Plans the paused extents, of the ranges where there are any. Gaps of elastic regions become paused extents there.
  // Without ranges the heap gives up paused memory that has no live block, and what may be one handle becomes one.
  Status plan_resume();
  // Charges the quotas for all of it, before anything is made. LIMIT_EXCEEDED: undo_resume() refunds what was charged.
  Status charge();
  // Charges and makes the planned memory, and maps nothing. restore() of a later plan finds it. A failure leaves
  // nothing.
  Status take_pages();
  // Returns the pages of take_pages(). Those that the driver does not take back stay for the next resume.
  void return_pages();
  // Makes and maps memory, and fills it. gmm_resume_wait() may return for extents that are filled.
  Status restore();
  // `moved` counts the bytes that were charged.
  void commit_resume();
  // Pauses everything again but the extents that gmm_resume_wait() promised to a caller, whose bytes `moved` counts.
  void undo_resume();

  uint64_t moved = 0;        // bytes that the device got back or gave
  bool has_dropped = false;  // a part that was paused has no contents any more

 private:
  struct PlannedExtent {
    Extent *extent;
    ExtentState before;
    bool charged = false;  // a resume charged the quotas for it
    bool was_spare = false;
  };

  [[nodiscard]] bool plan(Extent &extent) {
    return extents_.push_back(PlannedExtent{&extent, extent.state.load(std::memory_order_relaxed)});
  }
  void sort_planned();
  // fn(Extent &) for the extents of the heap; where there are ranges, for those that these touch.
  template <typename Fn>
  void for_each_asked(Fn fn);
  // fn(Region &, ByteRange) -> bool for each gap of an elastic region in the ranges, until one returns false.
  template <typename Fn>
  bool for_each_gap(Fn fn);
  // The extent, of an elastic region, becomes a gap.
  void leave_gap(Extent &extent);
  // Finds the live memory of the planned extents and divides it into one part an extent, for the backup. No parts: the
  // backup keeps nothing of them.
  Status plan_live_ranges();
  // Unmaps planned extents, neighbours by one call. After a failure those before it stay unmapped.
  Status unmap(uint64_t first, uint64_t count);
  // Maps those that are not mapped, and allows access to neighbours by one call. After a failure what this call mapped
  // is unmapped again, as far as the driver does that.
  Status map(uint64_t first, uint64_t count);
  // False, with a log message: the driver keeps the handle, which stays with its extent for the next pause or resume.
  bool release_pages(Extent &extent);
  // CAPTURING: a stream that uses the heap is being captured.
  Status check_capture(const char *operation);
  // The backup's steps, which report to `progress`.
  BackupSteps backup_steps();
  // `bytes` of the heap are copied. CANCELLED: the transition ends.
  Status report(uint64_t bytes);

  // A pause.
  Status check_importers(uint32_t importers);
  Status copy_out(bool unmaps);
  // After a hold a mapping that the driver does not take back stays with its extent, for the next call.
  Status unmap_planned(uint64_t first, uint64_t count);
  Status unmap_through(uint64_t index);  // the extents whose contents are out, in groups
  [[nodiscard]] bool ensure_kept(Extent &extent);
  gmm_contents contents_of_request();

  // A resume.
  bool is_wanted(const Extent &extent);
  Status end_cut_spares();
  Status order_behind_spares();
  Status charge(uint64_t bytes);
  Status fill_gaps();                            // with paused extents
  Status clear(uint64_t first, uint64_t count);  // GMM_RESUME_ZERO: the extents without kept contents
  Status make_pages(Extent &extent);             // unless it has them
  Status back_through(uint64_t index);           // memory for the extents up to this one, and for some that follow
  // Drops the contents of the restored extents, but for whole large blocks of a read-only tag, or of any with `retain`.
  void forget_restored(bool retain);
  // Drops the chunks that lie outside large blocks, and the views there.
  void drop_outside_large_blocks();

  TransitionContext &context_;
  const PauseRequest &request_;
  Heap &heap_;
  Vector<PlannedExtent> extents_;  // by address
  Vector<ByteRange> ranges_;       // live memory in them
  Vector<uintptr_t> blocks_;       // where the block of a range begins, when each has a file of its own
  Vector<BackupPart> parts_;       // one an extent, once plan_live_ranges() made the ranges
  Vector<Extent *> added_;         // by fill_gaps()
  uint64_t bytes_ = 0;             // of the ranges
  uint64_t wanted_bytes_ = 0;
  TransitionProgress *progress_ = nullptr;
  bool tells_ = false;
  uint64_t copied_ = 0;
  bool was_held_ = false;     // by keep() or take_pages()
  uint64_t next_extent_ = 0;  // the first that was not offered to unmap(), or has no memory yet

  gmm_contents contents_ = GMM_CONTENTS_DROP;  // what becomes of them in a pause
  bool saved_ = false;                         // the contents of all extents are out
  SavePass next_pass_ = SavePass::kOnly;
};

template <typename Fn>
void HeapTransition::for_each_asked(Fn fn) {
  if (!request_.has_ranges()) return for_each_extent(heap_, fn);
  Extent *last = nullptr;  // two ranges may touch one
  for (uint32_t i = 0; i < request_.range_count; ++i) {
    for (uintptr_t at = request_.ranges[i].base; at < request_.ranges[i].end();) {
      const auto [extent, range] = context_.core.page_map.find_place(at);
      at = range.end();
      if (extent != nullptr && extent != last && heap_of(region_of(extent)) == &heap_) fn(*extent);
      last = extent;
    }
  }
}

template <typename Fn>
bool HeapTransition::for_each_gap(Fn fn) {
  const PageMap &map = context_.core.page_map;
  for (uint32_t i = 0; i < request_.range_count; ++i) {
    const ByteRange &range = request_.ranges[i];
    for (uintptr_t at = range.base & ~(kExtentAlignment - 1), next; at < range.end(); at = next) {
      const PageMap::Place place = map.find_place(at);
      next = place.range.end();
      Block block;
      if (place.extent != nullptr || !find_block(context_.core, reinterpret_cast<void *>(at), &block) ||
          block.elastic == nullptr || block.heap != &heap_)
        continue;
      const uintptr_t end = std::min(Extents::rounded(range.end()), block.base + block.reserved);
      while (next < end && map.find_extent(next) == nullptr) next += kExtentAlignment;
      if (!fn(*block.elastic, ByteRange{at, next - at})) return false;
    }
  }
  return true;
}

}  // namespace gmm
#endif
