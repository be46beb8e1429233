// SPDX-License-Identifier: Apache-2.0
// Regions of a heap while the pauser has them: their free memory is out of use, and paused memory without blocks is
// given up.
//
// Owns the mark of a paused region, and its part of FastFields::has_paused, the count that makes every free look.
// Invariant: a paused region has no listed free run and no listed slab.
// Lock: the heap's, held by the caller of every function.
// Callers: engine/pause, and Heap::close().
#ifndef GMM_ENGINE_HEAP_PAUSED_REGIONS_H
#define GMM_ENGINE_HEAP_PAUSED_REGIONS_H

#include <atomic>
#include <cstdint>

#include "engine/heap/reclaim.h"

namespace gmm {

class PausedRegions : HeapPart {
 public:
  PausedRegions(Heap &heap, std::atomic<uint32_t> &has_paused) : HeapPart(heap), has_paused_(has_paused) {}

  // Takes the free memory of a region out of use.
  void detach(Region &region);
  // Puts it back.
  void attach(Region &region);
  // Puts it back if none of its extents is paused any more. A pause that has detached regions and not yet planned what
  // goes keeps them detached: its watchers take their time, and a trim of another thread must not undo its work.
  void settle(Region &region);
  void keep_detached(bool keeps) {
    keeps_detached_ = keeps;
    if (!keeps) refuses_importers_ = false;
  }
  // A held pause must not find importers at its commit. Until keep_detached(false).
  void refuse_importers() { refuses_importers_ = true; }
  bool refuses_importers() const { return refuses_importers_; }
  // Gives up paused extents without a live block, and the kept contents of free memory in the others. False: the region
  // was one of them and ended.
  bool drop(Region &region);
  // Makes neighbours of a region that are paused without a handle one, which the driver maps faster. Their blocks and
  // kept contents stay.
  void merge(Region &region);
  // The region ends: it is paused no more.
  void forget(Region &region);
  // While read-only contents are kept of active memory every free must look too.
  void set_retaining(bool retaining);
  bool is_retaining() const { return retaining_; }
  // Bytes of extents that are paused or, negative, are so no more.
  void count(int64_t bytes) { extents_.count_paused(bytes); }
  // Bytes that the last pause gave up and that others hold.
  void set_foreign_bytes(uint64_t bytes) { foreign_bytes_.store(bytes, std::memory_order_relaxed); }
  uint64_t foreign_bytes() const { return foreign_bytes_.load(std::memory_order_relaxed); }
  // Elastic regions: a gap becomes a paused extent, and that a gap again. Their block counts as live for what was taken
  // of it.
  Status add(Region &region, ByteRange range, Extent **out);
  void uncount(const Extent &extent);  // before its end
  void end(Extent &extent) { extents_.end_paused(&extent); }
  // Spares (Extents). Work that is queued on the calling thread's stream may still use extents that are given back from
  // now on. Takes the lock, and waits without it where the device has no order with that stream.
  Status give_back_on(gmm_stream stream);
  // No work uses them.
  void give_back_idle() { given_back_on_ = 0; }
  // The extent becomes a spare, which does not count as live; a spare is wanted again, and counts.
  void give_back(Extent &extent);
  void take_back(Extent &extent);
  // A resume that failed took it.
  void return_spare(Extent &extent);
  bool reuse_spare(Extent &into);
  Status release_spare(Extent &extent) { return extents_.release_spare(&extent); }
  Status put_behind(gmm_stream waiter, uint64_t bits) { return streams_.put_behind(key_of_caller(waiter), bits); }
  void end_empty_regions() { extents_.end_empty_regions(); }
  // Waits, without the lock, for all work that may use the heap's memory.
  Status wait_for_device() { return reclaim_.wait_for_device(); }

 private:
  void join_free(Region &region);

  std::atomic<uint32_t> &has_paused_;
  std::atomic<uint64_t> foreign_bytes_{0};
  uint64_t given_back_on_ = 0, given_back_at_ = 0;  // bits, and the stamp
  bool retaining_ = false;
  bool keeps_detached_ = false;
  bool refuses_importers_ = false;
};

}  // namespace gmm
#endif
