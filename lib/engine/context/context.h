// SPDX-License-Identifier: Apache-2.0
// A context: one backend and all that is allocated from it.
#ifndef GMM_ENGINE_CONTEXT_CONTEXT_H
#define GMM_ENGINE_CONTEXT_CONTEXT_H

#include <gmm/context.h>
#include <gmm/memory.h>
#include <gmm/stats.h>
#include <gmm/stream.h>

#include "base/retired_memory.h"
#include "engine/context/control.h"
#include "engine/context/metrics.h"
#include "engine/heap/block.h"
#include "engine/heap/capture.h"
#include "engine/heap/decommit.h"
#include "engine/heap/heap.h"
#include "engine/heap/heap_set.h"
#include "engine/ipc/ipc.h"
#include "engine/limits/limits.h"
#include "engine/limits/tag.h"
#include "engine/pause/pauser.h"
#include "engine/range/pin.h"
#include "engine/space/core.h"
#include "engine/trace/snapshot.h"
#include "engine/trace/trace.h"
#include "engine/watch/watchers.h"

namespace gmm {
class Context;
}  // namespace gmm

// A user's heap: the engine's, and what tells a handle from other memory.
struct gmm_heap : gmm::Heap {
  static constexpr uint64_t kMagic = 0x676d6d2d68656170;
  static constexpr char kHandleName[] = "heap";
  gmm_heap(gmm::Core &core, gmm::BackupStore &backups, gmm::CaptureHeaps &captures, const gmm::HeapOptions &options,
           gmm::Context *owner)
      : Heap(core, backups, captures, options), context(owner) {}
  uint64_t magic = kMagic;
  gmm::Context *context;
};

struct gmm_snapshot {
  static constexpr uint64_t kMagic = 0x676d6d2d736e6170;
  static constexpr char kHandleName[] = "snapshot";
  explicit gmm_snapshot(gmm::Context &of, const gmm::HostAllocator &allocator) : context(of), copy(allocator) {}
  uint64_t magic = kMagic;
  gmm::Context &context;
  gmm::Snapshot copy;
};

namespace gmm {

// The operations of a context. Each one checks nothing that api/ has checked, and spans the modules that it needs. The
// accessors give api/ and lease.cpp the parts whose operations concern one module alone.
class Context : NoCopy {
 public:
  static constexpr uint64_t kMagic = 0x676d6d2d63747874;
  Context(const HostAllocator &allocator, const Log &log);
  ~Context() = default;

  static Status create(const gmm_context_desc &desc, Context **out);
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  // Checked at the start of every call: a context, and of this process.
  static Status check(const Context *context);
  bool is_context() const { return magic_ == kMagic; }
  // The fast paths read one word: this process owns the context, no trace runs, and nothing checks memory.
  bool is_open() const { return core_.gate->word.load(std::memory_order_relaxed) == kGateOpen; }
  bool valid_device(gmm_device device) const { return device >= 0 && static_cast<uint32_t>(device) < device_count_; }

  Core &core() { return core_; }
  const Core &core() const { return core_; }
  uint32_t device_count() const { return device_count_; }
  BackupStore &backups() { return backups_; }
  TagTable &tags() { return tags_; }
  const TagTable &tags() const { return tags_; }
  HeapSet &heaps() { return heaps_; }
  PinTable &pins() { return pins_; }
  Trace &trace() { return trace_; }
  Pauser &pauser() { return pauser_; }
  Ipc &ipc() { return ipc_; }
  Metrics &metrics() { return metrics_; }
  const Ipc &ipc() const { return ipc_; }
  uint64_t held_on(Device device) const { return held_on_[device.ordinal].held(); }

  // --- The context and its devices ---------------------------------------------------------------------------
  void query(gmm_context_info *out) const;
  Status query_device(Device device, gmm_device_info *out);
  // Fills everything but struct_size for any address.
  void query(const void *address, gmm_pointer_info *out);
  // The scope is checked.
  Status collect_statistics(const gmm_scope_desc &scope, gmm_stats_info *out);
  Status take_snapshot(const gmm_scope_desc &scope, gmm_snapshot **out);
  // The scope is checked and names no kind.
  void set_limit(const gmm_scope_desc &scope, uint64_t bytes) { quota_of(scope).set_limit(bytes); }
  Status set_oom_handler(gmm_oom_fn fn, void *user) { return limits_.set_handler(fn, user); }
  Status set_decommit(uint64_t milliseconds) { return decommit_.set(milliseconds); }
  Status watch(const gmm_watch_desc &desc, gmm_watcher **out) { return watchers_.add(this, desc, out); }

  // gmm_trace_begin(): with the blocks that are live.
  Status begin_trace(const char *path, const gmm_trace_desc &desc);

  // --- Memory ----------------------------------------------------------------------------------------------
  // The shared heap of a kind, device and tag; made at its first use.
  Status heap_for(Kind kind, Device device, gmm_tag tag, Heap **out);
  // Trims, asks the handler and names the largest holders when memory is short. size and alignment are checked.
  Status allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out);
  // allocate() on a stream that nothing captures. `failure`: of a first try, which is not made again before the trim.
  Status allocate_from(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out,
                       Status failure = Status());
  // gmm_free(), past the fast path.
  Status free(void *memory, gmm_stream stream);
  // gmm_heap_reserve(). Trims and asks the handler as an allocation does.
  Status reserve(Heap &heap, uint64_t bytes);
  // NOT_SUPPORTED for a kind that the device does not have.
  Status make_heap(HeapOptions options, uint64_t limit, gmm_heap **out);
  Status end_heap(gmm_heap *heap);
  Status name_block(const void *memory, const char *name);
  // Ends a tag with its shared heaps. BUSY: something uses the tag; then the tag is as before.
  Status destroy_tag(gmm_tag tag);
  Status configure_tag(gmm_tag tag, const gmm_tag_desc &desc);
  Status reset();
  // Returns everything free in the scope to the driver.
  Status trim(const gmm_scope_desc &scope, uint64_t *bytes);
  // gmm_trim(): page-locked host memory too that holds no contents. UNCHANGED inside gmm_defer_begin(), whose end
  // trims.
  Status trim_for_program(const gmm_scope_desc &scope, uint64_t *bytes);
  Status defer_begin();
  Status defer_end();

  // --- Streams, and work on them (stream.cpp) ----------------------------------------------------------------
  Status create_stream(Device device, int32_t priority, gmm_stream *out);
  Status synchronize(gmm_stream stream);
  // The stream is about to go: waits for its work, and nothing names it any more.
  Status forget_stream(gmm_stream stream);
  Status destroy_stream(gmm_stream stream);
  // PAUSED, INVALID_SIZE: a range of a block or import must lie in it and be active.
  Status copy(void *destination, const void *source, uint64_t size, gmm_stream stream);
  Status fill(void *destination, uint8_t value, uint64_t size, gmm_stream stream);
  Status record_use(const void *memory, gmm_stream stream);

  // --- Operations that take pages from memory or give it some (transition.cpp) -------------------------------
  // Pauses what the request names. GMM_PAUSE_FORCE revokes what importers hold of it.
  Status pause(const PauseRequest &request, uint64_t *bytes);
  // When memory is short, everything free goes back to the driver and the resume runs once more.
  Status resume(const PauseRequest &request, uint64_t *bytes);
  // gmm_move() and gmm_compact(); the descriptors are checked. BUSY: a watcher stands in the way. Where memory is
  // watched, they wait for other operations on its tags. A compaction passes by heaps that an operation has.
  Status move(void *memory, Device location, uint32_t flags, gmm_stream stream);
  Status compact(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out);

 private:
  Status init(const gmm_context_desc &desc);
  void begin_checks();
  void begin_trace_of_environment();
  Status allow_control();
  void report_leaks();
  void end();
  Quota &quota_of(const gmm_scope_desc &scope);
  Status add_heap(Heap &heap, gmm_tag tag);
  Status check_unused(Tag &tag);
  Status end_shared_heaps(Tag &tag);
  // Trims and asks the handler until again() -> Status succeeds or neither helps. `status` is the first failure, of the
  // function `what`.
  template <typename Fn>
  Status trim_and_retry(Status status, const char *what, Heap &heap, uint64_t size, Fn again);
  Status enter_capture(Heap &parent, gmm_stream stream, Heap **out);
  // Memory of graphs that are gone goes back to the driver, as far as the work is done that may use it. Heaps that hold
  // nothing then end.
  void collect_ended_captures(bool may_wait = true);
  void end_capture_heap(Heap *heap);
  Status check_captures_of(const Heap &parent);
  void orphan_captures_of(const Heap &parent);
  Status clear(Heap &heap, void *memory, uint64_t size, gmm_stream stream, bool *paused);
  Status try_allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out);
  Status trim_everything(uint64_t *bytes);
  void return_spares(Device device, uint64_t bytes, const Heap *but);
  template <typename Fn>
  Status resume_with_trim(Fn resume);
  Status move_watched(void *memory, Device location, uint32_t flags, gmm_stream stream);
  // Bytes of the heaps for which wanted(const Heap &) is true.
  template <typename Fn>
  uint64_t sum_of(uint64_t HeapTotals::*bytes, Fn wanted) {
    uint64_t sum = 0;
    const auto add = [&](Heap &heap) -> Status {
      if (wanted(heap)) sum += heap.totals().*bytes;
      return Status();
    };
    heaps_.for_each(add, false).ignore();  // it never fails
    return sum;
  }
  // Records an operation that changes what heaps hold, or its failure.
  template <typename Fn>
  Status traced(Status status, Fn record) {
    if (!trace_.running()) return status;
    if (!status.ok()) {
      trace_.failed(status, 0, nullptr);
      return status;
    }
    if (status.code() != GMM_OK) return status;  // nothing changed
    record();
    trace_held();
    return status;
  }
  void trace_held();
  Status compact_heaps(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out);
  Status compact_watched(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out);
  Status check_not_ended(gmm_stream stream, const char *operation) const;
  // An address outside of the context's live blocks.
  void query_free(const Extent &extent, const void *address, gmm_pointer_info *out);
  bool query_other(const void *address, gmm_pointer_info *out);

  // A thread that asks about an address without a lock may just have read which heap it belonged to.
  void retire(gmm_heap *heap);

  uint64_t magic_ = kMagic;
  Core core_;
  uint32_t device_count_ = 0;
  uint32_t flags_ = 0;  // GMM_CONTEXT_*
  BackupStore backups_;
  TagTable tags_;
  HeapSet heaps_;
  CaptureHeaps captures_;
  Quota held_;
  Quota held_on_[kMaxDevices];
  PinTable pins_;
  Limits limits_;
  Trace trace_;
  Watchers watchers_;
  Pauser pauser_;
  Ipc ipc_;
  Decommit decommit_;
  Control control_;
  Metrics metrics_{*this};
  std::atomic<uint32_t> references_{1};
  Mutex make_heap_mutex_{LockRank::kMakeHeap};
  RetiredMemory retired_heaps_;
  std::atomic<uint32_t> trim_pending_{0};  // gmm_trim() inside gmm_defer_begin()
};

// Opens what was asked for, or, for AUTO, cuda when a driver and a device answer, else host. The one place that names
// backends.
Status open_backend(const gmm_context_desc &desc, const HostAllocator &allocator, const Log &log, Backend **out);

}  // namespace gmm

struct gmm_context : gmm::Context {
  using gmm::Context::Context;
};
#endif
