// SPDX-License-Identifier: Apache-2.0
// The central heap of one device, kind and tag: what the thread caches are filled from and empty into.
//
// Heap chooses between its parts and holds their lock. Each part is an object in a file of its own:
//   Runs           regions, the spans that tile them, free runs and holes      engine/heap/runs.h
//   Slabs          spans that hold blocks of one small class                   engine/heap/slabs.h
//   StreamOrder    which streams' queued work may still use free memory        engine/heap/stream_order.h
//   BlockNotes     names, further streams and exports of live blocks           engine/heap/block_notes.h
//   Extents        physical memory under the regions                           engine/heap/extents.h
//   Growth         memory for a block that no free run fits                    engine/heap/growth.h
//   Reclaim        free memory back to the driver                              engine/heap/reclaim.h
//   Compactor      free memory side by side or back, on request                engine/heap/compactor.h
//   PausedRegions  regions that the pauser has: the one part that others see   engine/heap/paused_regions.h
//   HeapChecks     what GMM_DEBUG and memory tools look at                     engine/heap/checks.h
//   HeapCaches     the caches of its threads, under a lock of their own        engine/heap/heap_caches.h
//
// Lock: `mutex`, after HeapCaches::mutex. No driver call that may wait runs with it held.
// Callers: the thread caches (take, put_back), api/ and the modules above.
#ifndef GMM_ENGINE_HEAP_HEAP_H
#define GMM_ENGINE_HEAP_HEAP_H

#include <cstdint>

#include "base/lock.h"
#include "engine/heap/checks.h"
#include "engine/heap/compactor.h"
#include "engine/heap/growth.h"
#include "engine/heap/heap_options.h"
#include "engine/heap/paused_regions.h"
#include "engine/heap/reclaim.h"

namespace gmm {

class CaptureHeaps;
class GraphLife;

// The request of a thread cache. Up to kMaxSmall bytes and kGranule of alignment, a block of a size class
// serves it; else a run of granules.
struct BlockRequest {
  uint64_t size = 0;                 // bytes, from 1
  uint64_t alignment = 1;            // a power of two, up to kExtentAlignment
  StreamKey key;                     // where the block will be used
  uint32_t wanted = 1;               // blocks of a size class: up to so many, as far as one slab has them
  bool dedicated = false;            // one block with a driver allocation of its own
  const CommTraits *comm = nullptr;  // for network libraries; dedicated, too
  bool paused = false;               // addresses without memory; dedicated, too
  bool may_grow = true;              // false: zero blocks instead of memory from the driver or from another stream
  // Large blocks, freed on the same stream, that go back to the heap first. Their slots are 0.
  const CacheEntry *back = nullptr;
  uint32_t back_count = 0;
};

class Heap : NoCopy {
 public:
  Heap(Core &core, BackupStore &backups, CaptureHeaps &captures, const HeapOptions &options);
  ~Heap();

  // Registers the heap with the threads' tables. NOT_SUPPORTED when there are too many heaps.
  Status init();

  const HeapOptions &options() const { return options_; }
  Core &core() { return core_; }
  Backend &backend() const { return *core_.backend; }
  Quotas &quotas() { return quotas_; }
  Quota &own_quota() { return own_quota_; }
  uint64_t paused_bytes() const { return extents_.paused_bytes(); }

  // --- Blocks; each call takes the lock ------------------------------------------------------------------------------
  // Takes blocks, whose slots are 0. The heap grows when nothing free fits. Returns errors unrecovered.
  Status take(const BlockRequest &request, CacheEntry *out, uint32_t *count);
  // Blocks back, in the order of a stream. Slots are 0. Another thread's per-thread stream: the caller has waited for
  // the device.
  void put_back(const CacheEntry *entries, uint32_t count, StreamKey key);
  // The next two with the lock held, which the caller took without waiting. They neither wait nor call the driver, the
  // host allocator or the log. False: nothing happened.
  //
  // Takes blocks of memory that is free for the stream as it is. The request is not dedicated, aligned to more than a
  // granule or with blocks to go back.
  [[nodiscard]] bool take_free(const BlockRequest &request, CacheEntry *out, uint32_t *count);
  // One block back, whose slot becomes 0.
  [[nodiscard]] bool put_back_now(const CacheEntry &entry, StreamKey key);
  // Bytes that an elastic block counts for.
  uint64_t taken_bytes(const Span &span);
  // gmm_record_use(): the block, live, is used on a stream too.
  Status record_use(const CacheEntry &block, gmm_stream stream);
  // The stack that allocated or frees the block that starts there. It is not noted while an operation has the heap.
  static void note_stack(Core &core, const void *memory, uint32_t stack, bool is_free = false);
  // gmm_name(): the block, live, has a name; NULL: none. The name is checked. OUT_OF_HOST_MEMORY; ALREADY_FREED where
  // another thread frees the block.
  Status set_name(const CacheEntry &block, const char *name);
  // At the free of a block with further uses or a name, on a stream `key` of the calling thread: puts that stream
  // behind those that use the block, and forgets the name. *held: importers have its memory, and the heap holds the
  // block until free_held_for_importers() finds them gone.
  Status order_after_uses(const CacheEntry &block, StreamKey key, bool *held);
  // Without may_wait an operation that has the heap does it at its end.
  void free_held_for_importers(bool may_wait = true);
  // The stream is about to go, and its work is done. A pause or resume that has the heap forgets it at its end.
  void forget_stream(gmm_stream stream);
  // The calling thread ends and has put everything back. A pause or resume that has the heap notes that at its end.
  void end_thread(uint64_t thread);
  // The graph is gone that a capture heap held its memory for: from here on free memory may go.
  void end_of_graph();

  // --- The whole heap ------------------------------------------------------------------------------------------------
  // Empties every cache of this heap into it. wait: also what per-thread streams of other threads freed. Nobody else
  // can record an event for those, so the device is waited for, which can fail.
  Status drain_caches(bool wait);
  // gmm_heap_reserve(): holds at least so much from now on, all of it touched. 0: no more than others need. A failure
  // leaves the heap as it was. Returns errors unrecovered.
  Status reserve(uint64_t bytes);
  // gmm_compact() of a VMM heap, as far as *work says, which counts what was done. The lock is free between the steps.
  // An operation that has it ends the call.
  Status compact(Compaction *work);
  // Bytes of the largest free run; 0 where an operation has the lock.
  uint64_t largest_free();
  // Frees every block, live ones too. The device was synchronised, no other thread is inside.
  Status reset();
  // Everything back to the driver. BUSY while blocks are live, unless forced; the first refusal of the driver
  // otherwise, with nothing kept.
  Status close(bool force);
  // Never waits for an operation that has the lock: free bytes are then those at its start.
  HeapTotals totals();

  // Free memory back to the driver. It takes the lock.
  Reclaim &reclaim() { return reclaim_; }
  HeapChecks &checks() { return checks_; }

  // --- With the lock held ------------------------------------------------------------------------------------------
  // Calls fn(Region &) for each region; fn may end it.
  template <typename Fn>
  void for_each_region(Fn fn) {
    for (Region *region = runs_.regions().front(), *next; region != nullptr; region = next) {
      next = runs_.regions().next(region);
      fn(*region);
    }
  }
  // Whether a stream that the heap knows is being captured into a graph.
  bool any_capturing() { return streams_.any_capturing(); }
  // Names and exports of live blocks.
  BlockNotes &notes() { return notes_; }
  // The pauser's operations on the heap.
  PausedRegions &paused() { return paused_; }

  // --- For the threads' caches -------------------------------------------------------------------------------------
  HeapCaches &caches() { return caches_; }
  // Whether large blocks pass the thread caches by, because the heap grew just now. A block that stays then, such as a
  // tensor that grows, would take the place of what was freed last. That lies among short-lived blocks, and keeps an
  // extent each time.
  bool passes_caches() const { return passing_.load(std::memory_order_relaxed) != 0; }
  // One such block was taken or freed.
  void passed_caches() {
    if (const uint32_t left = passing_.load(std::memory_order_relaxed); left != 0)
      passing_.store(left - 1, std::memory_order_relaxed);
  }

  // The fast paths read these, and few operations write them.
  struct FastFields {
    Gate *gate = nullptr;
    uint32_t slot = 0;                    // index in the threads' tables
    std::atomic<uint32_t> has_paused{0};  // regions are paused: a free must look
    uint64_t serial = 0;                  // never used again in the process
    uintptr_t last_uncaptured =
        UINTPTR_MAX;  // streams above are asked whether they are captured (engine/heap/capture.h)
  } fast;

  // The fields of a heap that serves a graph capture (engine/heap/capture.h), under CaptureHeaps::mutex.
  struct CaptureFields {
    Heap *parent = nullptr;          // the heap that was asked; NULL when that one is gone
    GraphLife *graph = nullptr;      // one reference
    std::atomic<uint32_t> users{0};  // allocations under way
  } capture;

  OperationLock mutex{LockRank::kHeap};
  // Takes the lock for an operation, which waits with it. totals() answers during that time.
  void lock_for_operation() {
    mutex.lock();
    begin_operation();
  }
  // With the lock held.
  void begin_operation() {
    counted_free_.store(free_bytes(), std::memory_order_relaxed);
    may_put_off_ = true;
    checks_.begin_operation();
    mutex.begin_operation();
  }

 private:
  // kNow: as take_free() does it.
  enum class Effort { kNow, kNoGrowth, kGrow };

  CacheEntry make_large(Span *run);
  Status compact_live(Compaction *work);
  Status take_locked(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count);
  Status take_small(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count);
  Status take_run(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count);
  Status find_run(uint64_t bytes, uint64_t alignment, StreamKey key, Effort effort, RunUse use, Span **out);
  Status drain_for_growth();
  Status provide_bookkeeping(uint64_t bytes);
  uint64_t free_bytes() { return runs_.free_bytes() + slabs_.free_bytes(); }
  uint64_t bit_of_free(StreamKey key);
  void forget_locked(StreamKey stream);
  bool put_off_forgetting(StreamKey stream);
  void end_operation();
  void free_held_locked();
  void put_back_one(const CacheEntry &entry, uint64_t bit);
  void put_back_large(Span *span, uint64_t bit);
  Span *make_slab(uint32_t class_index, Span *run);
  Span *retire_slab(Span *slab);

  friend class HeapPart;
  friend class HeapChecks;

  Core &core_;
  CaptureHeaps &captures_;
  const HeapOptions options_;
  Quotas quotas_;
  Quota own_quota_;
  HeapCaches caches_{*this};  // its mutex comes before this one
  GrowthPolicy policy_;
  Runs runs_;
  Slabs slabs_;
  StreamOrder streams_;
  BlockNotes notes_;
  Extents extents_;
  Reclaim reclaim_{*this};
  PausedRegions paused_{*this, fast.has_paused};
  Growth growth_{*this};
  Compactor compactor_{*this};
  HeapChecks checks_{*this};
  Vector<CacheEntry> not_waited_for_;  // freed by per-thread streams of other threads, whose work may still run
  Vector<StreamKey> forgotten_;        // to forget at the end of the operation that has the lock
  bool may_put_off_ = false;           // that operation takes more of them; a wait inside of a free does not
  bool frees_held_later_ = false;      // somebody found an operation, and did not free what importers held
  // Large blocks that are still to be taken or freed past the thread caches. Threads count it without a lock, and may
  // lose a step.
  std::atomic<uint32_t> passing_{0};
  static constexpr uint32_t kPassing = 128;
  std::atomic<uint64_t> counted_free_{0};  // free_bytes() when it was counted last
};

class OperationGuard : NoCopy {
 public:
  explicit OperationGuard(Heap &heap) : heap_(heap) { heap_.lock_for_operation(); }
  ~OperationGuard() { heap_.mutex.unlock(); }

 private:
  Heap &heap_;
};

}  // namespace gmm
#endif
