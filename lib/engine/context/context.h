// SPDX-License-Identifier: Apache-2.0
// A context: one backend and all that is allocated from it.
#ifndef GMM_ENGINE_CONTEXT_CONTEXT_H
#define GMM_ENGINE_CONTEXT_CONTEXT_H

#include <gmm/context.h>
#include <gmm/memory.h>
#include <gmm/stats.h>
#include <gmm/stream.h>

#include "base/retired_memory.h"
#include "engine/heap/block.h"
#include "engine/heap/capture.h"
#include "engine/heap/decommit.h"
#include "engine/heap/heap.h"
#include "engine/heap/heap_set.h"
#include "engine/ipc/ipc.h"
#include "engine/ipc/semaphores.h"
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
  gmm_heap(gmm::Core &core, gmm::BackupStore &backups, gmm::CaptureHeaps &captures, const gmm::HeapOptions &options,
           gmm::Context *owner)
      : Heap(core, backups, captures, options), context(owner) {}
  uint64_t magic = kMagic;
  gmm::Context *context;
};

struct gmm_event {
  static constexpr uint64_t kMagic = 0x676d6d2d65766e74;
  uint64_t magic = kMagic;
  gmm::Context *context = nullptr;
  gmm::NativeEvent native = nullptr;
  gmm::Device device;
  // Made with GMM_EVENT_SHARED, or imported: then these own what `native` is.
  gmm::SharedEvent *shared = nullptr;
  gmm::EventImport *import = nullptr;
  gmm::Semaphore *semaphore = nullptr;  // of gmm_event_import_semaphore(): the event is this alone
};

struct gmm_snapshot {
  static constexpr uint64_t kMagic = 0x676d6d2d736e6170;
  explicit gmm_snapshot(gmm::Context &of, const gmm::HostAllocator &allocator) : context(of), copy(allocator) {}
  uint64_t magic = kMagic;
  gmm::Context &context;
  gmm::Snapshot copy;
};

namespace gmm {

class Context {
 public:
  static constexpr uint64_t kMagic = 0x676d6d2d63747874;
  Context(const HostAllocator &allocator, const Log &log);
  ~Context() = default;
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  static Status create(const gmm_context_desc &desc, Context **out);
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  // Checked at the start of every call: a context, and of this process.
  static Status check(const Context *context);
  bool valid_device(gmm_device device) const { return device >= 0 && static_cast<uint32_t>(device) < device_count; }

  // --- Memory ----------------------------------------------------------------------------------------------
  // The shared heap of a kind, device and tag; made at its first use.
  Status heap_for(Kind kind, Device device, gmm_tag tag, Heap **out);
  // With trimming, the handler and a telling error when memory is short. size and alignment are checked.
  Status allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out);
  // The same when cached_alloc() has failed already: it is not tried again before the trim.
  Status allocate_after_failure(Status failure, Heap &heap, uint64_t size, gmm_stream stream, void **out);
  // gmm_heap_reserve(), with the same when memory is short.
  Status reserve(Heap &heap, uint64_t bytes);
  // NOT_SUPPORTED for a kind that the device does not have.
  Status make_heap(const HeapOptions &options, uint64_t limit, gmm_heap **out);
  Status end_heap(gmm_heap *heap);
  // Ends a tag with its shared heaps. BUSY: something uses the tag; then the tag is as before.
  Status destroy_tag(gmm_tag tag);
  Status reset();
  Status trim(const gmm_scope_desc &scope, uint64_t *bytes);
  // gmm_compact() of the VMM heaps in the scope; the descriptor is checked. Passes by heaps that an operation has.
  Status compact(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out);
  // gmm_trim(): page-locked host memory too that holds no contents.
  Status trim_for_program(const gmm_scope_desc &scope, uint64_t *bytes);
  Status defer_begin();
  Status defer_end();
  // gmm_trim() inside gmm_defer_begin(): at its end.
  void put_off_trim() { trim_pending_.store(1, std::memory_order_release); }
  // The stream is about to go, and its work is done: nothing names it any more.
  void forget_stream(gmm_stream stream);
  // Memory of graphs that are gone goes back to the driver, as far as the work is done that may use it. Heaps that hold
  // nothing then end.
  void collect_ended_captures(bool may_wait = true);

  uint64_t magic = kMagic;
  Core core;
  uint32_t device_count = 0;
  uint32_t flags = 0;  // GMM_CONTEXT_*
  BackupStore backups;
  TagTable tags;
  HeapSet heaps;
  CaptureHeaps captures;
  Quota held;
  Quota held_on[kMaxDevices];
  PinTable pins;
  Limits limits;
  Trace trace;
  Watchers watchers;
  Pauser pauser;
  Ipc ipc;
  Decommit decommit;

 private:
  Status init(const gmm_context_desc &desc);
  void begin_trace();
  void report_leaks();
  void end();
  Status add_heap(Heap &heap, gmm_tag tag);
  Status check_unused(Tag &tag);
  Status end_shared_heaps(Tag &tag);
  // Trims and asks the handler until again() -> Status succeeds or neither helps. `status` is the first failure, of the
  // function `what`.
  template <typename Fn>
  Status trim_and_retry(Status status, const char *what, Heap &heap, uint64_t size, Fn again);
  Status allocate_from(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out);
  Status enter_capture(Heap &parent, gmm_stream stream, Heap **out);
  void end_capture_heap(Heap *heap);
  Status check_captures_of(const Heap &parent);
  void orphan_captures_of(const Heap &parent);
  Status clear(Heap &heap, void *memory, uint64_t size, gmm_stream stream, bool *paused);
  Status try_allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out);

  // A thread that asks about an address without a lock may just have read which heap it belonged to.
  void retire(gmm_heap *heap);

  std::atomic<uint32_t> references_{1};
  Mutex make_heap_mutex_{LockRank::kMakeHeap};
  RetiredMemory retired_heaps_;
  std::atomic<uint32_t> trim_pending_{0};
};

// Opens what was asked for, or, for AUTO, cuda when a driver and a device answer, else host. The one place that names
// backends.
Status open_backend(const gmm_context_desc &desc, const HostAllocator &allocator, const Log &log, Backend **out);

}  // namespace gmm

struct gmm_context : gmm::Context {
  using gmm::Context::Context;
};
#endif
