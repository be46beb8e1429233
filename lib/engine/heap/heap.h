// SPDX-License-Identifier: Apache-2.0
// The central heap of one device, kind and tag: what the thread caches are filled from and empty into.
//
// Its parts, each an object under the heap's lock:
//   Runs         regions, the spans that tile them, free runs and holes   engine/heap/runs.h
//   Slabs        spans that hold blocks of one small class                engine/heap/slabs.h
//   StreamOrder  which streams' queued work may still use free memory     engine/heap/stream_order.h
//   BlockUses    further streams and exports of live blocks               engine/heap/block_uses.h
// GrowthPolicy (engine/heap/growth.h) says how much memory a heap takes and when it moves some.
//
// Addresses: a VMM heap reserves large regions and backs them bit by bit, so that free runs coalesce across handles and
// the end of a region grows in place. Other kinds have a region for each driver allocation. Physical memory: extents
// grow with the heap, since the driver's cost follows the number of handles. Extents are moved to other addresses when
// nothing fits the holes that they left. Before a heap grows, in this order:
//   1. thread caches come back;
//   2. memory freed on other streams is put behind the wanting stream;
//   3. free neighbours of different streams are merged;
//   4. free extents whose work is done are moved (VMM) or go back to the driver.
#ifndef GMM_ENGINE_HEAP_HEAP_H
#define GMM_ENGINE_HEAP_HEAP_H

#include <cstdint>

#include "base/lock.h"
#include "engine/backup/store.h"
#include "engine/heap/block_uses.h"
#include "engine/heap/cache_entry.h"
#include "engine/heap/growth.h"
#include "engine/heap/heap_caches.h"
#include "engine/heap/low_water.h"
#include "engine/heap/runs.h"
#include "engine/heap/slabs.h"
#include "engine/heap/stream_order.h"
#include "engine/limits/quota.h"
#include "engine/space/core.h"

namespace gmm {

struct HeapOptions {
  Kind kind = Kind::kDevice;
  Device device;
  gmm_tag tag = GMM_TAG_DEFAULT;
  uint64_t minimum_extent = 0;
  uint32_t peers = 0;
  uint64_t capture = 0;  // the graph capture that the heap serves (engine/heap/capture.h); 0: none
};

enum class Effort { kNoGrowth, kGrow };

class Heap {
 public:
  Heap(Core &core, BackupStore &backups, const HeapOptions &options);
  ~Heap();
  Heap(const Heap &) = delete;
  Heap &operator=(const Heap &) = delete;

  // Registers the heap with the threads' tables. NOT_SUPPORTED when there are too many heaps.
  Status init();

  const HeapOptions &options() const { return options_; }
  Core &core() { return core_; }
  Backend &backend() const { return *core_.backend; }
  Quotas &quotas() { return quotas_; }
  Quota &own_quota() { return own_quota_; }

  // --- Blocks; each call takes the lock --------------------------------------------------------------------------
  // One to `wanted` blocks of a small class for use on a stream. kNoGrowth: zero blocks instead of taking memory from
  // the driver or from another stream.
  Status take_small(uint32_t class_index, StreamKey key, Effort effort, uint32_t wanted, CacheEntry *out,
                    uint32_t *count);
  // A span in state kLarge with its slot still 0; *out is NULL when kNoGrowth found none. First `back`, large blocks,
  // goes back, freed on the same stream.
  Status take_large(uint64_t size, uint64_t alignment, StreamKey key, Effort effort, const CacheEntry *back,
                    uint32_t back_count, Span **out);
  // A block with a driver allocation of its own.
  Status take_dedicated(uint64_t size, Span **out);
  // Blocks back, in the order of a stream. Slots are 0. Another thread's per-thread stream: the caller has waited for
  // the device.
  void put_back(const CacheEntry *entries, uint32_t count, StreamKey key);
  // gmm_record_use(): the block, live, is used on a stream too.
  Status record_use(const CacheEntry &block, gmm_stream stream);
  // The block is exported under *id, or was already: then *id becomes the known one. With `mutex` held.
  Status mark_exported(const CacheEntry &block, uint64_t *id) { return uses_.mark_exported(block, id); }
  // Exported under another id from now on. With `mutex` held.
  void export_anew(const void *block, uint64_t old_id, uint64_t id) { uses_.export_anew(block, old_id, id); }
  // Whether the live block at this address was exported under this id. With `mutex` held.
  bool exported_as(const void *block, uint64_t id) const { return uses_.exported_as(block, id); }
  // At the free of such a block, on a stream `key` of the calling thread: puts that stream behind those that use the
  // block. *held: importers have its memory, and the heap holds the block until free_held_for_importers() finds them
  // gone.
  Status order_after_uses(const CacheEntry &block, StreamKey key, bool *held);
  // may_wait: for an operation that has the heap; otherwise the blocks go another time.
  void free_held_for_importers(bool may_wait = true);
  Status forget_stream(gmm_stream stream);
  // The calling thread ends and has put everything back.
  void end_thread(uint64_t thread);

  // --- Memory back to the driver ---------------------------------------------------------------------------------
  // Free extents, up to `at_most` bytes. wait: after the work that may use them, without the lock, as a callback in a
  // stream may free memory; else only where that is done.
  Status release_free(uint64_t at_most, bool wait, uint64_t *released);
  // Every block, live ones too. The device was synchronised, no other thread is inside.
  Status reset();
  // The graph is gone that a capture heap held its memory for: from here on free memory may go.
  void end_of_graph() {
    LockGuard guard(mutex);
    held_for_graph_ = false;
  }
  // Everything back to the driver. BUSY while blocks are live, unless forced; the first refusal of the driver
  // otherwise, with nothing kept.
  Status close(bool force);

  // --- Idle memory, for engine/decommit (heap_idle.cpp); one thread at a time ------------------------------------
  // Looks at what is free, at a time of any clock that goes forward. Empties the caches of threads that did nothing
  // with the heap for the age, as far as nobody must be waited for. Returns how many bytes were free during the whole
  // age and may go.
  uint64_t look_for_idle(uint64_t now, uint64_t age);
  // After it: extents that were seen free for the age and whose work is done, never more than `at_most` bytes in all,
  // and no further one after `slice` bytes, so that the lock is free again soon. Nothing while a stream is being
  // captured.
  Status release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released);

  // --- Thread caches ----------------------------------------------------------------------------------
  // Empties every cache of this heap into it. wait: also what per-thread streams of other threads freed. Nobody else
  // can record an event for those, so the device is waited for, which can fail.
  Status drain_caches(bool wait);
  // Before the heap grows: the same without waiting, unless other threads' caches were emptied too often of late.
  Status drain_for_growth(uint64_t thread);
  // Before it grows for a block: waits until free memory can be moved instead, where that saves much.
  void wait_to_move(uint64_t bytes);
  // Never waits for an operation that has the lock: free bytes are then those at its start.
  HeapTotals totals();

  void count_failure() { caches.count_failure(); }
  // Free bytes that release_free() may offer to the driver.
  uint64_t releasable();

  // What the fast paths read. Written rarely.
  struct FastFields {
    Gate *gate = nullptr;
    uint32_t slot = 0;                    // index in the threads' tables
    std::atomic<uint32_t> has_paused{0};  // regions are paused: a free must look
    uint64_t serial = 0;                  // never used again in the process
    uintptr_t last_uncaptured =
        UINTPTR_MAX;  // streams above are asked whether they are captured (engine/heap/capture.h)
  } fast;

  HeapCaches caches{*this};  // its mutex comes before this one
  OperationLock mutex{LockRank::kHeap};
  // Takes the lock for an operation, which waits with it. totals() answers meanwhile.
  void lock_for_operation() {
    mutex.lock();
    counted_free_.store(free_bytes(), std::memory_order_relaxed);
    mutex.begin_operation();
  }

  // --- For features, with `mutex` held -------------------------------------------------------------------
  List<Region, HeapRegions> &regions() { return runs_.regions(); }
  // Calls fn(Span &) for every span of a region in address order.
  template <typename Fn>
  void for_each_span(Region &region, Fn fn) {
    for (Span *span = region.first, *next; span != nullptr; span = next) {
      next = span->after;
      fn(*span);
    }
  }

  // --- For the pauser (heap_pause.cpp), with `mutex` held --------------------------------------------------------
  // Takes the free memory of a region out of use, or puts it back.
  void detach(Region &region);
  void attach(Region &region);
  // Paused extents without a live block are given up. False when the region was dedicated and ended with them.
  bool drop_paused(Region &region);
  // Neighbours of a region that are paused without a handle become one, which the driver maps faster. Their blocks and
  // what is kept stay.
  void merge_paused(Region &region);
  // While read-only contents are kept of active memory every free must look (FastFields::has_paused).
  void set_retaining(bool retaining);
  void end_empty_regions();
  StreamOrder &streams() { return streams_; }
  void count_paused(int64_t bytes) { paused_ += static_cast<uint64_t>(bytes); }

 private:
  // heap.cpp: slabs and blocks
  Status find_run(uint64_t count, uint64_t alignment, StreamKey key, Effort effort, Span **out);
  Status new_slab(uint32_t class_index, StreamKey key, Effort effort, Span **out);
  // Free memory that may be used once this stream got to where it is now.
  void order_behind(Span *span, uint64_t bit) {
    span->streams = bit;
    span->stamp = streams_.stamp();
  }
  bool is_done(const Span *span) const {
    return span->streams == 0 || streams_.done(span->streams, span->stamp) == span->streams;
  }
  uint64_t bit_of_free(StreamKey key);
  void put_back_locked(const CacheEntry *entries, uint32_t count, StreamKey key);
  void put_back_one(const CacheEntry &entry, uint64_t bit);
  void put_back_large(Span *span, uint64_t bit);
  Span *retire_slab(Span *slab);  // the free run that it became part of

  uint64_t free_bytes();  // in slabs and free runs, not in caches

  // heap_grow.cpp: regions and memory from the driver
  Status grow(uint64_t count, uint64_t alignment, StreamKey key, Span **out);
  Status grow_vmm(uint64_t bytes, uint64_t alignment, StreamKey key, Span **out);
  Status grow_plain(uint64_t bytes, uint64_t step, bool dedicated, Span **out);
  uint64_t plain_step() const;
  Status reserve_region(uint64_t bytes, bool exact, Region **out);
  Status charge(uint64_t bytes, uint64_t *wanted);
  // The unbacked addresses that take the least memory to hold a run.
  struct Window {
    Span *hole = nullptr;
    uint64_t offset = 0;  // where in it
    uint64_t bytes = 0;   // to be backed
  };
  uint64_t live_peak(uint64_t bytes);
  Window find_window(uint64_t bytes, uint64_t alignment, uint64_t allowed);
  [[nodiscard]] bool take_edges(const Window &window, StreamKey key);

  // heap_pause.cpp
  void end_extent(Extent *extent);
  void forget_freed(const Span &span);
  void drop_paused_in(Span *run);

  // heap_extents.cpp: extents come, move and go
  // Unbacked addresses that are being backed from their start.
  struct Fill {
    Span *hole = nullptr;    // what is left of them, in no list; NULL when used up
    Span *filled = nullptr;  // the free run made so far, in no list
    uint64_t bytes = 0;      // of it
  };
  // A free run, in no list, cut where an extent begins and ends.
  struct Cut {
    Span *before = nullptr, *extent = nullptr, *after = nullptr;
  };
  Status cut_extent(const Extent &extent, Span *run, Cut *out);
  Span *rejoin(const Cut &cut);
  Status map_at_hole(Fill *fill, PhysicalHandle handle, uint64_t size, Span **place);
  void unmap_at_hole(Fill *fill, Span *place);
  void bind_extent(Fill *fill, Span *place, Extent *extent);
  Status add_extent(Fill *fill, uint64_t size);
  Status add_extents(Fill *fill, uint64_t bytes, uint64_t block);
  Status move_extent(Extent *extent, Fill *fill);
  // Free extents, whose work is done, to the hole, up to `wanted` bytes or somewhat more. What cannot be moved stays.
  void move_free_extents(Fill *fill, uint64_t wanted, uint64_t block);
  Status release_extent(Extent *extent, Span *run, Span **rest);
  // The extents that lie in a free run whole and belong to nobody else.
  template <typename Fn>
  void for_each_extent_in(Span *run, Fn fn) {
    for (uintptr_t at = run->begin(), end = run->end(); at < end;) {
      Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
      const uintptr_t base = extent->base.load(std::memory_order_relaxed);
      const bool whole = base >= run->begin() && base + extent->size.load(std::memory_order_relaxed) <= end;
      at = base + extent->size.load(std::memory_order_relaxed);
      if (whole && extent->importers.load(std::memory_order_relaxed) == 0) fn(extent);
    }
  }

  // heap_idle.cpp
  void stamp_free_extents(uint64_t since);

  // heap_release.cpp: back to the driver
  struct IdleRule;
  template <typename Fn>
  void for_each_releasable(Fn fn);
  Status wait_for_free();
  bool clear_done_streams();
  Status release_free_locked(uint64_t at_most, uint64_t *released, const IdleRule *rule = nullptr);
  void drop_span(Span *span);
  Status release_run_extents(Span *run, uint64_t at_most, uint64_t *released, const IdleRule *rule = nullptr);
  Status release_plain_region(Region *region);
  void end_region(Region *region);
  void forget_region(Region *region, Span *span);

  Core &core_;
  BackupStore &backups_;  // forgets what it keeps of blocks and extents that end
  const HeapOptions options_;
  Quotas quotas_;
  Quota own_quota_;
  Runs runs_;
  Slabs slabs_;
  GrowthPolicy growth_;
  StreamOrder streams_;
  BlockUses uses_;
  Vector<CacheEntry> unsettled_;           // freed by per-thread streams that could not be waited for
  std::atomic<uint64_t> extent_count_{0};  // written with the lock held, as paused_
  bool held_for_graph_;                    // a graph may use free memory too
  uint64_t look_ = 0;                      // how often look_for_idle() looked
  LowWater low_water_;                     // of the bytes that may go; look_for_idle()'s and release_idle()'s own
  std::atomic<uint64_t> paused_{0};
  std::atomic<uint64_t> counted_free_{0};  // free_bytes() when it was counted last
  bool retaining_ = false;
};

class OperationGuard {
 public:
  explicit OperationGuard(Heap &heap) : heap_(heap) { heap_.lock_for_operation(); }
  ~OperationGuard() { heap_.mutex.unlock(); }
  OperationGuard(const OperationGuard &) = delete;
  OperationGuard &operator=(const OperationGuard &) = delete;

 private:
  Heap &heap_;
};

}  // namespace gmm
#endif
