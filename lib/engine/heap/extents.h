// SPDX-License-Identifier: Apache-2.0
// The physical memory of a heap: regions of addresses, and the extents that back them.
//
// Owns what the heap has from the driver: reservations, handles and their mappings (VMM), or driver allocations (other
// kinds), and the number of extents.
// Invariants, whenever the lock is free: every address of a region that is not unbacked lies in one extent, and the
// page map names it. The quotas hold the bytes of the extents that have a handle or a mapping.
// An elastic region is the exception: it is one block of GMM_ALLOC_PAUSED, of which only what was taken has extents.
// The block counts as live for their bytes alone. A part that was given back without its contents becomes a spare: it
// is paused, and its pages stay mapped and charged until a resume of the same part takes them, another part of the heap
// gets their handle, or a release returns them.
// A failure leaves everything as it was. A thing that the driver refuses to take back goes to the deferred release.
// Lock: the heap's, held by the caller of every function.
// Callers: Growth, which says how much and where, Reclaim and PausedRegions, which say what goes, and Heap::close().
#ifndef GMM_ENGINE_HEAP_EXTENTS_H
#define GMM_ENGINE_HEAP_EXTENTS_H

#include <cstdint>

#include "base/status.h"
#include "engine/backup/store.h"
#include "engine/heap/heap_options.h"
#include "engine/heap/runs.h"
#include "engine/limits/quota.h"
#include "engine/space/core.h"

namespace gmm {

// Which free extents may go back to the driver.
struct ReleaseRule {
  uint64_t at_most = UINT64_MAX;  // bytes in all, never more
  // Only idle memory: Reclaim's newest look, the time and the age. 0: all free memory.
  uint64_t look = 0, now = 0, age = 0;
  bool bounds_dedicated = false;  // dedicated blocks count, too; else they go in any case
  bool allows(const Extent &extent, uint64_t released) const {
    if (size_of(extent) > at_most || released > at_most - size_of(extent)) return false;
    return look == 0 ||
           (extent.idle.look == look && extent.idle.extent_id == extent.id && now - extent.idle.free_since >= age);
  }
};

// A part of an extent, which lies in new pages afterwards.
struct Piece {
  ByteRange range;
  PhysicalHandle handle;     // of the new pages
  Extent *extent = nullptr;  // that has them: the old one for the first piece
};

// Copies pieces of an extent, in address order, on a stream to new pages at a location, and maps these in the place of
// the old pages, which the caller releases. The rest of the extent's addresses has no memory any more. A failure leaves
// everything as it was. The call waits for the device, with the heap's lock held as that of an operation.
Status move_to_new_pages(Core &core, const Extent &extent, Device device, Device location, gmm_stream stream,
                         Vector<Piece> *pieces);

class Extents {
 public:
  // Unbacked addresses that are being backed from their start.
  struct Fill {
    Span *hole = nullptr;    // the rest of them, in no list; NULL when used up
    Span *filled = nullptr;  // the free run made so far, in no list
    uint64_t bytes = 0;      // of it
  };

  Extents(Core &core, Heap *heap, BackupStore &backups, const HeapOptions &options, const Quotas &quotas, Runs &runs)
      : core_(core), heap_(heap), backups_(backups), options_(options), quotas_(quotas), runs_(runs) {}

  // Bytes of new memory from which the device is asked first whether it has so many.
  static constexpr uint64_t kWorthAsking = uint64_t{1} << 30;

  uint64_t count() const { return count_; }
  static uint64_t rounded(uint64_t bytes) { return (bytes + kExtentAlignment - 1) & ~(kExtentAlignment - 1); }

  // --- Regions -----------------------------------------------------------------------------------------------------
  // VMM: reserves addresses for a region, which one unbacked span in no list covers: `bytes`, or up to `at_most` where
  // these can be had.
  Status reserve(uint64_t bytes, uint64_t at_most, Region **out);
  // The size of a region that is backed bit by bit: addresses cost next to nothing.
  static constexpr uint64_t kRegionSize = uint64_t{32} << 30;
  // A region of one driver allocation, which one free span in no list covers. Charged by the caller.
  // `comm`: memory for network libraries, which is VMM and dedicated.
  Status allocate(uint64_t bytes, bool dedicated, Span **out, const CommTraits *comm = nullptr);
  // VMM: addresses of an elastic region, which one span in no list covers.
  Status reserve_elastic(uint64_t bytes, Span **out);
  // Returns such a region of another kind than VMM, whose only span is in no list, and refunds it.
  Status deallocate(Region *region);
  // Ends a region of which one span is left. VMM: returns the addresses.
  void end_region(Region *region);
  // VMM: returns the addresses of regions that hold nothing. Else pauses, during which allocations go to new regions,
  // would use them up.
  void end_empty_regions();
  // Returns the whole region, live blocks too, whatever the driver says.
  void end_with_blocks(Region *region);

  // --- Extents of VMM regions --------------------------------------------------------------------------------------
  // Takes the addresses of a hole from an offset on out of the list. OUT_OF_HOST_MEMORY: the hole is as before.
  Status begin_fill(Span *hole, uint64_t offset, Fill *fill);
  // The rest of the hole is one again. It is listed already where a moved extent left a hole right behind it.
  void end_fill(const Fill &fill) {
    if (fill.hole != nullptr && !fill.hole->listed) runs_.make_hole(fill.hole);
  }
  // Backs the start of the hole by new extents of `each` bytes, the last one smaller. Charged by the caller; what was
  // not made is refunded.
  Status add(Fill *fill, uint64_t bytes, uint64_t each);
  // Maps an extent that lies in a listed free run to the start of the hole. A refusal of the driver leaves it where it
  // was. The rest of the run before it is the same span. `run` may be the one of before another move, which cut it.
  Status move(Extent *extent, Span *run, Fill *fill);
  // Returns an extent out of a free run that is in no list. The rest of the run before it is listed; *rest is what
  // follows, in no list.
  Status release(Extent *extent, Span *run, Span **rest);
  // Returns every extent that lies whole in the listed run and that no importer has, until *released reaches
  // `at_most` bytes, and only what a rule allows.
  Status release_in(Span *run, uint64_t at_most, uint64_t *released, const ReleaseRule *rule);
  // move_to_new_pages() of an extent. Every piece is an extent then. The new pages are charged only as they replace the
  // old ones.
  Status evacuate(Extent *extent, Vector<Piece> *pieces);
  // Makes two neighbours without a handle one, with the kept contents of both. False: they cannot be joined.
  bool merge(Extent *into, Extent *from);

  // --- Extents of elastic regions ----------------------------------------------------------------------------------
  // A paused extent, for a gap of the region.
  Status add_paused(Region &region, ByteRange range, Extent **out);
  // It becomes a gap. A part that the driver did not take back goes to the deferred release.
  void end_paused(Extent *extent);
  // An extent becomes a spare, which work of its streams may still use; a spare is wanted again.
  void make_spare(Extent *extent);
  void take_spare(Extent *extent);
  // Moves the handle of another spare of that size into the extent, which has none. Its quota moves along.
  // is_done(const Extent &): no work uses its pages. False: there is none, or the driver refuses.
  template <typename Fn>
  bool reuse_spare(Extent &into, Fn is_done) {
    for (Extent *spare = spares_.front(); spare != nullptr; spare = spares_.next(spare))
      if (size_of(*spare) == size_of(into) && is_done(*spare)) return move_handle(spare, into);
    return false;
  }
  // Calls fn(Extent *) for each spare, which may end it.
  template <typename Fn>
  void for_each_spare(Fn fn) {
    for (Extent *spare = spares_.front(), *next; spare != nullptr; spare = next) {
      next = spares_.next(spare);
      fn(spare);
    }
  }
  // Returns its pages. A refusal leaves it a spare.
  Status release_spare(Extent *extent);
  bool has_spares() { return !spares_.empty(); }
  // Returns all of a region whose block was freed, with its addresses. The driver's first refusal ends it.
  Status release_elastic(Region *region, uint64_t *released);
  // Counts the bytes of a region that can be used.
  static void count_active(Region &region);
  // Bytes of a region that were taken.
  static uint64_t bytes_of(Region &region) {
    uint64_t bytes = 0;
    for_each_extent(region, [&](const Extent &extent) { bytes += extent.is_spare ? 0 : size_of(extent); });
    return bytes;
  }

  // Memory was freed: contents kept of active memory are not those of its next block, and of paused memory nobody wants
  // them back. `run` is the free run around it: what was kept together with its free neighbours goes, too.
  void forget_contents(ByteRange freed, const Span &run);

  // release_in() of the extents that may_go(const Extent &) is true for. The first refusal ends it.
  template <typename Fn>
  Status release_if(Span *run, uint64_t *released, Fn may_go) {
    Status status;
    uintptr_t at = run->begin();
    const uintptr_t end = run->end();
    runs_.unlist(run);
    while (run != nullptr && at < end && status.ok()) {
      Extent *extent = core_.page_map.find_extent(at);
      const uintptr_t base = base_of(*extent);
      const uint64_t size = size_of(*extent);
      at = base + size;
      if (base < run->begin() || at > end || extent->importers.load(std::memory_order_relaxed) != 0) continue;
      if (!may_go(*extent)) continue;
      status = release(extent, run, &run);
      if (status.ok()) *released += size;
    }
    if (run != nullptr) runs_.list(run);
    return status;
  }

  // Calls fn(Extent *) for the extents that lie whole in a free run and that no importer has, from its end on.
  template <typename Fn>
  void for_each_in(const Span *run, Fn fn) {
    for (uintptr_t begin = run->begin(), at = run->end(); at > begin;) {
      Extent *extent = core_.page_map.find_extent(at - 1);
      at = base_of(*extent);
      const bool whole = at >= begin && at + size_of(*extent) <= run->end();
      if (whole && extent->importers.load(std::memory_order_relaxed) == 0) fn(extent);
    }
  }

  // Bytes of memory that any block may lie in: not of dedicated blocks, and not paused.
  uint64_t pooled_bytes();
  // Makes the first use of memory cheap: takes the pages of the system behind it, and room in the page map for blocks
  // that begin and end anywhere. OUT_OF_MEMORY or OUT_OF_HOST_MEMORY.
  Status touch(uintptr_t base, uint64_t size);
  // Touches all memory that pooled_bytes() counts.
  Status touch_all();

  // Bytes of extents that are paused. The pauser counts what it pauses and resumes.
  uint64_t paused_bytes() const { return paused_bytes_; }
  void count_paused(int64_t bytes) { paused_bytes_ += static_cast<uint64_t>(bytes); }

 private:
  template <typename Fn>
  void for_each_pooled(Fn fn);
  // A free run, in no list, cut where an extent begins and ends.
  struct Cut {
    Span *before = nullptr, *extent = nullptr, *after = nullptr;
  };
  Status allocate_mapped(uint64_t bytes, bool dedicated, Span **out, const CommTraits *comm);
  Status add_one(Fill *fill, uint64_t size);
  void begin_region(Region *region, Span *span, bool dedicated);
  // Gives reserved addresses back. `region` may be NULL.
  Status without_bookkeeping(void *base, uint64_t size, Region *region);
  void return_region(Region *region, Span *span);
  void begin_extent(Extent *extent, PhysicalHandle handle);
  void place(Extent *extent, const Span &span) { place(extent, ByteRange{span.begin(), span.bytes()}, span.region); }
  void place(Extent *extent, ByteRange range, Region *region);
  void displace(ByteRange range);
  void end_extent(Extent *extent);
  void leave_gap(const Extent &extent);
  bool move_handle(Extent *spare, Extent &into);
  Status cut_at(const Extent &extent, Span *run, Cut *out);
  Span *rejoin(const Cut &cut);
  Status map(Fill *fill, PhysicalHandle handle, uint64_t size, Span **place);
  void unmap(Fill *fill, Span *place);
  void join(Fill *fill, Span *span, Extent *extent);

  Core &core_;
  Heap *const heap_;
  BackupStore &backups_;  // forgets what it keeps of extents that end
  const HeapOptions &options_;
  const Quotas &quotas_;
  Runs &runs_;
  List<Extent, SpareExtents> spares_;
  std::atomic<uint64_t> count_{0};  // written with the heap's lock held, as paused_bytes_
  std::atomic<uint64_t> paused_bytes_{0};
};

}  // namespace gmm
#endif
