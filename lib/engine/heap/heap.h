// SPDX-License-Identifier: Apache-2.0
// The central heap of one device, kind and tag: what the thread caches are filled from and empty into.
//
// Addresses: a VMM heap reserves large regions and backs them bit by bit, so that free runs coalesce across handles and the end of a
// region grows in place; other kinds have a region for each driver allocation. Spans tile every region (engine/space/span.h).
// Physical memory: extents grow with the heap, since the driver's cost follows the number of handles, and are moved to other
// addresses when nothing fits the holes that they left (engine/heap/growth.h). Before a heap grows, in this order: thread caches come back, memory
// freed on other streams is put behind the wanting stream, free neighbours of different streams are merged, and free extents whose work is done are
// moved (VMM) or go back to the driver.
#ifndef GMM_ENGINE_HEAP_HEAP_H
#define GMM_ENGINE_HEAP_HEAP_H

#include <cstdint>

#include "base/lock.h"
#include "engine/backup/store.h"
#include "engine/heap/cache_entry.h"
#include "engine/heap/growth.h"
#include "engine/heap/low_water.h"
#include "engine/heap/stream_order.h"
#include "engine/heap/transfer_cache.h"
#include "engine/limits/quota.h"
#include "engine/space/core.h"
#include "engine/space/free_runs.h"

namespace gmm {

struct HeapCache;
struct HeapCaches;

struct HeapOptions {
  Kind kind = Kind::kDevice;
  Device device;
  gmm_tag tag = GMM_TAG_DEFAULT;
  uint64_t minimum_extent = 0;
  uint32_t peers = 0;
  uint64_t capture = 0;  // the graph capture that the heap serves (engine/heap/capture.h); 0: none
};

enum class Effort { kNoGrowth, kGrow };

struct HeapTotals {
  uint64_t live_bytes = 0, live_blocks = 0, allocations = 0, frees = 0;
  uint64_t forgotten = 0;  // blocks that a reset freed
  uint64_t held = 0, peak_held = 0, peak_live = 0, paused = 0, extents = 0, free_bytes = 0, failures = 0;
};

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

  // --- Blocks; each call takes the lock -------------------------------------------------------------
  // One to `wanted` blocks of a small class for use on a stream. kNoGrowth: zero blocks instead of taking memory from the driver or from another stream.
  Status take_small(uint32_t class_index, StreamKey key, Effort effort, uint32_t wanted, CacheEntry *out,
                    uint32_t *count);
  // A span in state kLarge with its slot still 0; *out is NULL when kNoGrowth found none. First `back`, large blocks, goes back, freed on the same stream.
  Status take_large(uint64_t size, uint64_t alignment, StreamKey key, Effort effort, const CacheEntry *back,
                    uint32_t back_count, Span **out);
  // A block with a driver allocation of its own.
  Status take_dedicated(uint64_t size, Span **out);
  // Blocks back, in the order of a stream. Slots are 0. Another thread's per-thread stream: the caller has waited for the device.
  void put_back(const CacheEntry *entries, uint32_t count, StreamKey key);
  // gmm_record_use(): the block, live, is used on a stream too.
  Status record_use(const CacheEntry &block, gmm_stream stream);
  // The block is exported under *id, or was already: then *id becomes the known one. With `mutex` held.
  Status mark_exported(const CacheEntry &block, uint64_t *id);
  // Exported under another id from now on. With `mutex` held.
  void export_anew(const void *block, uint64_t old_id, uint64_t id);
  // Whether the live block at this address was exported under this id. With `mutex` held.
  bool exported_as(const void *block, uint64_t id) const;
  // At the free of such a block: puts `key` behind those streams. *kept: importers hold its memory, and the heap keeps it aside
  // until free_kept_aside() finds them gone.
  Status settle_uses(const CacheEntry &block, StreamKey key, bool *kept);
  void free_kept_aside();
  Status forget_stream(gmm_stream stream);
  // The calling thread ends and has put everything back.
  void end_thread(uint64_t thread);

  // --- Memory back to the driver ------------------------------------------------------------------
  // Free extents, up to `at_most` bytes. wait: after the work that may use them, without the lock, as a callback in a stream may
  // free memory; else only where that is done.
  Status release_free(uint64_t at_most, bool wait, uint64_t *released);
  // Every block, live ones too. The device was synchronised, no other thread is inside.
  Status reset();
  // The graph is gone that a capture heap kept its memory for: from here on free memory may go.
  void end_of_graph() {
    LockGuard guard(mutex);
    kept_for_graph_ = false;
  }
  // Everything back to the driver. BUSY while blocks are live, unless forced; the first refusal of the driver otherwise, with nothing kept.
  Status close(bool force);

  // --- Idle memory, for engine/decommit (heap_idle.cpp); one thread at a time -----------------------------------------
  // Looks at what is free, at a time of any clock that goes forward. Empties the caches of threads that did nothing with the heap for
  // the age, as far as nobody must be waited for. Returns how many bytes were free during the whole age and may go.
  uint64_t look_for_idle(uint64_t now, uint64_t age);
  // After it: extents that were seen free for the age and whose work is done, never more than `at_most` bytes in all, and no further
  // one after `slice` bytes, so that the lock is free again soon. Nothing while a stream is being captured.
  Status release_idle(uint64_t now, uint64_t age, uint64_t at_most, uint64_t slice, uint64_t *released);

  // --- Thread caches ----------------------------------------------------------------------------------
  // Empties every thread's cache of this heap, and what is between them, into the heap. wait: also what per-thread streams of other threads freed, for
  // which nobody else can record an event: the device is waited for, which can fail.
  Status drain_caches(bool wait);
  // Before the heap grows: the same without waiting, unless other threads' caches were emptied too often of late.
  Status drain_for_growth(uint64_t thread);
  // Before it grows for a block: waits until free memory can be moved instead, where that saves much.
  void wait_to_move(uint64_t bytes);
  HeapTotals totals();

  void count_failure() {
    LockGuard guard(caches_mutex);
    ++ended.failures;
  }

  // What the fast paths read. Written rarely.
  struct FastFields {
    Gate *gate = nullptr;
    uint32_t slot = 0;                    // index in the threads' tables
    std::atomic<uint32_t> has_paused{0};  // regions are paused: a free must look
    uint64_t serial = 0;                  // never used again in the process
    uintptr_t last_uncaptured =
        UINTPTR_MAX;  // streams above are asked whether they are captured (engine/heap/capture.h)
  } fast;

  // For HeapCache's code and the features that walk a heap.
  Mutex caches_mutex;  // before mutex
  List<HeapCache, HeapCaches> caches;
  HeapTotals ended;  // counters of caches that are gone; under caches_mutex
  TransferCache transfers{*this};
  Mutex mutex;

  // --- For features, with `mutex` held -------------------------------------------------------------------
  List<Region, HeapRegions> &regions() { return regions_; }
  // Calls fn(Span &) for every span of a region in address order.
  template <typename Fn>
  void for_each_span(Region &region, Fn fn) {
    for (Span *span = region.first, *next; span != nullptr; span = next) {
      next = span->after;
      fn(*span);
    }
  }

  // --- For the pauser (heap_pause.cpp), with `mutex` held -------------------------------------------------------
  // Takes the free memory of a region out of use, or puts it back.
  void detach(Region &region);
  void attach(Region &region);
  // Paused extents without a live block are given up. False when the region was dedicated and ended with them.
  bool drop_paused(Region &region);
  // Neighbours of a region that are paused without a handle become one, which the driver maps faster. Their blocks and what
  // is kept stay.
  void merge_paused(Region &region);
  // While read-only contents are kept of active memory every free must look (FastFields::has_paused).
  void set_retaining(bool retaining);
  void end_empty_regions();
  StreamOrder &streams() { return streams_; }
  void count_paused(int64_t bytes) { paused_ += static_cast<uint64_t>(bytes); }

 private:
  // heap_runs.cpp: tiling
  Span *new_span(SpanState state, uintptr_t base, uint64_t size, Region *region);
  void end_span(Span *span);
  bool split(Span *run, uint64_t first_bytes, Span **rest);
  static void link_between(Span *before, Span *span, Span *after);
  Span *merge(Span *first, Span *second);
  Span *cut_front(Span *run, uint64_t bytes);
  Span *free_run(Span *run);
  void merge_all(bool any_streams);
  void merge_region(Region &region, bool any_streams);
  Status carve(Span *run, uint64_t count, uint64_t alignment, Span **out);
  Status find_run(uint64_t count, uint64_t alignment, StreamKey key, Effort effort, Span **out);
  void list_run(Span *run);
  void unlist_run(Span *run);

  // heap.cpp: slabs and blocks
  Status new_slab(uint32_t class_index, StreamKey key, Effort effort, Span **out);
  // Free memory that may be used once this stream got to where it is now.
  void order_behind(Span *span, uint64_t bit) {
    span->streams = bit;
    span->stamp = streams_.stamp();
  }
  bool is_done(const Span *span) const {
    return span->streams == 0 || streams_.done(span->streams, span->stamp) == span->streams;
  }
  void put_back_locked(const CacheEntry *entries, uint32_t count, StreamKey key);
  void put_back_one(const CacheEntry &entry, uint64_t bit);
  void put_back_large(Span *span, uint64_t bit);
  Span *find_slab(uint32_t class_index, uint64_t allowed);
  Span *retire_slab(Span *slab);  // the free run that it became part of

  void list_hole(Span *hole);

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
  void make_hole(Span *span);
  Status map_at_hole(Fill *fill, PhysicalHandle handle, uint64_t size, Span **place);
  void unmap_at_hole(Fill *fill, Span *place);
  void settle_extent(Fill *fill, Span *place, Extent *extent);
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
  uint64_t drain_idle_caches(uint64_t now, uint64_t age);
  void stamp_free_extents(uint64_t since);

  // heap_release.cpp: back to the driver
  struct IdleRule;
  template <typename Fn>
  void for_each_releasable(Fn fn);
  Status wait_for_free();
  bool settle_free();
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
  FreeRuns free_;
  // Spans that ended, for the next, linked by `after`: blocks that come and go need one or two each time, and the pool has a lock.
  static constexpr uint32_t kSpares = 32;
  Span *spare_ = nullptr;
  uint32_t spares_ = 0;
  GrowthPolicy growth_;
  StreamOrder streams_;
  List<Region, HeapRegions> regions_;
  List<Span, SpanOrder> slabs_[kSmallClasses];  // with free blocks
  List<Span, SpanOrder> dedicated_;             // free dedicated blocks that wait for their streams
  List<Span, SpanOrder> holes_;                 // unbacked addresses, those of paused regions too
  struct Use {
    void *block;
    StreamKey key;
    uint64_t exported;  // the export's id; 0: a stream's use
  };
  struct KeptAside {
    CacheEntry entry;
    StreamKey key;
    bool ordered;   // false: nothing is queued that may use it
    uint64_t uses;  // bits of further streams
  };
  bool has_importers(const CacheEntry &entry);
  uint64_t note_frees(StreamKey key);
  void note_peak(uint64_t live);  // with caches_mutex held
  Vector<Use> uses_;
  Vector<KeptAside> kept_aside_;
  Vector<CacheEntry> unsettled_;  // freed by per-thread streams that could not be waited for
  // Bytes of a slab behind its last block: held, in no block, and free again with the slab.
  static uint64_t slab_tail(const Span &slab) {
    return slab.bytes() - uint64_t{slab.block_count.load(std::memory_order_relaxed)} * slab.block_bytes();
  }
  // Live bytes when they were last added up, and the most of them: written with caches_mutex held.
  std::atomic<uint64_t> seen_live_{0}, seen_peak_live_{0};
  uint64_t slab_tails_ = 0;  // of all slabs that are not paused
  uint64_t extent_count_ = 0;
  bool kept_for_graph_;  // a graph may use free memory too
  uint64_t look_ = 0;    // how often look_for_idle() looked
  LowWater low_water_;   // of the bytes that may go; look_for_idle()'s and release_idle()'s own
  uint64_t paused_ = 0;
  bool retaining_ = false;
};

}  // namespace gmm
#endif
