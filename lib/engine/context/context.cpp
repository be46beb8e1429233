// SPDX-License-Identifier: Apache-2.0
#include "engine/context/context.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/environment.h"
#include "base/environment_check.h"
#include "base/memory_tool.h"
#include "base/nvtx.h"
#include "base/os_memory.h"
#include "base/process.h"
#include "base/thread_record.h"
#include "engine/heap/thread_cache.h"
#include "engine/limits/shortage.h"

namespace gmm {
namespace {

constinit std::atomic<uint32_t> g_traced_contexts{0};  // that GMM_TRACE asked for

Gate *make_gate() {
  void *page = os::map_page_of_process();
  return page == nullptr ? nullptr : ::new (page) Gate();
}

}  // namespace

Context::Context(const HostAllocator &allocator, const Log &log)
    : core_(allocator, log),
      backups_(core_),
      tags_(allocator),
      heaps_(allocator),
      captures_(allocator),
      pins_(core_),
      trace_(core_, tags_),
      watchers_(core_, heaps_, held_, held_on_),
      pauser_(core_, backups_, heaps_, tags_, watchers_),
      ipc_(core_, heaps_, ControlTaker{Control::take, &control_}),
      decommit_(core_, heaps_),
      control_(*this),
      retired_heaps_(allocator, sizeof(gmm_heap), alignof(gmm_heap)) {
  core_.return_spares_user = this;
  core_.return_spares = [](void *self, Device device, uint64_t bytes, const Heap *but) {
    static_cast<Context *>(self)->return_spares(device, bytes, but);
  };
}

Status Context::check(const Context *context) {
  if (__builtin_expect(context == nullptr, 0))
    return fail(GMM_ERROR_NULL_ARGUMENT, "The context is NULL; make one with gmm_context_create().");
  if (__builtin_expect(context->magic_ != kMagic, 0))
    return fail(GMM_ERROR_INVALID_HANDLE, "%p is no context, or was released.", static_cast<const void *>(context));
  if (__builtin_expect(!context->core_.alive(), 0))
    return fail(GMM_ERROR_FORKED,
                "The context belongs to the process that forked this one; make a new one here, or start the program "
                "anew (exec).");
  return Status();
}

Status Context::create(const gmm_context_desc &desc, Context **out) {
  const HostAllocator allocator(desc.host_allocator.allocate, desc.host_allocator.deallocate, desc.host_allocator.user);
  const Log log(desc.log.fn, desc.log.user);
  gmm_context *made = nullptr;
  hold_thread_records();
  if (void *memory = allocator.allocate(sizeof(gmm_context), alignof(gmm_context) < 16 ? 16 : alignof(gmm_context)))
    made = ::new (memory) gmm_context(allocator, log);
  if (made == nullptr) {
    release_thread_records();
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a context.");
  }
  const Status status = made->init(desc);
  if (!status.ok()) {
    MessageGuard message_guard;
    made->end();
    return status;
  }
  *out = made;
  return Status();
}

Status Context::init(const gmm_context_desc &desc) {
  flags_ = desc.flags;
  core_.gate = make_gate();
  if (core_.gate == nullptr || !core_.page_map.init())
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a context.");
  check_environment(core_.log);
  GMM_TRY(open_backend(desc, core_.allocator, core_.log, &core_.backend));
  device_count_ = core_.backend->device_count();
  if (device_count_ > kMaxDevices) {
    core_.log.write(LogLevel::kWarning, "%u devices answer; gmm uses the first %u.", device_count_, kMaxDevices);
    device_count_ = kMaxDevices;
  }
  for (uint32_t i = 0; i < device_count_; ++i) {
    gmm_device_info info = {};
    GMM_TRY(core_.backend->device_traits(Device{static_cast<int32_t>(i)}, &info));
    DeviceTraits &traits = core_.devices[i];
    traits.capabilities = info.capabilities;
    traits.kinds = info.kinds;
    std::memcpy(traits.uuid, info.uuid, sizeof traits.uuid);
  }
  // The legacy default stream, which cannot be captured, has the two smallest values.
  if (core_.backend->can_capture() && (desc.flags & GMM_CONTEXT_NO_CAPTURE) == 0)
    core_.last_uncaptured = reinterpret_cast<uintptr_t>(GMM_STREAM_LEGACY);
  GMM_TRY(tags_.init());
  prepare_barriers();
  load_nvtx();
  begin_checks();
  core_.log.write(LogLevel::kInfo, "Backend %s, %u devices.", core_.backend->name(), device_count_);
  begin_trace_of_environment();
  GMM_TRY(decommit_.init());
  if (metrics_.begin_file())
    decommit_.set_job([](void *metrics) { static_cast<Metrics *>(metrics)->write_file(); }, &metrics_);
  GMM_TRY(decommit_.set(desc.decommit_after_ms));
  return allow_control();
}

// The flag is the program's wish, so a failure is its own. GMM_CONTROL must not keep a program from running.
Status Context::allow_control() {
  uint32_t wanted = 0;
  environment_word(Variable::kControl, &wanted);  // a bad value was warned of, and leaves it at 0
  const bool is_asked = (flags_ & GMM_CONTEXT_CONTROL) != 0;
  if (!is_asked && wanted == 0) return Status();
  control_.allow();
  const Status status = ipc_.listen();
  if (status.ok() || is_asked) return status;
  core_.log.complain("GMM_CONTROL: %s", last_message());
  return Status();
}

// GMM_DEBUG's words, and the tool around the program.
void Context::begin_checks() {
  constexpr uint32_t kOff = 1;  // the first word
  uint32_t words = 0;
  environment_words(Variable::kDebug, &words);  // a bad value was warned of, and leaves it at 0
  core_.checks = words / 2;
  const bool has_tool = core_.backend->id() == GMM_BACKEND_HOST ? memory_tool::is_attached() : has_nvtx_memory_tool();
  if ((words & kOff) == 0 && has_tool) core_.checks |= kCheckTool;
  if ((core_.checks & kCheckStacks) != 0) prepare_call_stacks();
  core_.gate->word.store(core_.gate_without_trace(), std::memory_order_relaxed);
}

// As GMM_TRACE says. A "%p" in it becomes the process id, so that a program's children have files of their own. So does
// each further context of the process, by its number.
void Context::begin_trace_of_environment() {
  const char *asked = environment_text(Variable::kTrace);
  if (asked == nullptr) return;
  char number[16] = "";
  if (const uint32_t before = g_traced_contexts.fetch_add(1, std::memory_order_relaxed); before != 0)
    std::snprintf(number, sizeof number, ".%u", before + 1);
  gmm_trace_desc desc = {};
  if (environment_number(Variable::kTraceStacks, &desc.stack_bytes) == Reading::kBad)
    core_.log.complain("GMM_TRACE_STACKS is no number of bytes from 1; the trace has no stacks.");
  char path[4096];
  const char *place = std::strstr(asked, "%p");
  const int length = place == nullptr ? std::snprintf(path, sizeof path, "%s%s", asked, number)
                                      : std::snprintf(path, sizeof path, "%.*s%d%s%s", static_cast<int>(place - asked),
                                                      asked, process_number(), place + 2, number);
  if (length >= static_cast<int>(sizeof path))
    core_.log.complain("GMM_TRACE: the path is longer than %zu bytes.", sizeof path - 1);
  else if (!trace_.begin(path, desc).ok())
    core_.log.complain("GMM_TRACE: %s", last_message());
}

Status Context::begin_trace(const char *path, const gmm_trace_desc &desc) {
  GMM_TRY(trace_.begin(path, desc));
  const Status status = heaps_.for_each([&](Heap &heap) -> Status {
    Snapshot copy(core_.allocator);
    heap.caches().end_fast_paths();
    GMM_TRY(copy.copy_heap(heap, *tags_.get(heap.options().tag), false));
    trace_.lived(heap, copy);
    return Status();
  });
  if (status.ok()) return status;
  MessageGuard message_guard;
  trace_.end().ignore();
  return status;
}

void Context::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) end();
}

void Context::report_leaks() {
  Snapshot snapshot(core_.allocator);
  if (!snapshot.take(core_, heaps_, tags_, gmm_scope_desc()).ok())
    core_.log.write(LogLevel::kWarning, "Not all blocks that are live are reported: %s", last_message());
  snapshot.report_leaks(core_);
}

// Also what a failed init() left.
void Context::end() {
  control_.stop();
  if (core_.gate != nullptr && trace_.running() && !trace_.end().ok()) core_.log.complain("%s", last_message());
  watchers_.clear();
  decommit_.stop();
  metrics_.end_file();
  if (core_.backend != nullptr) {
    for (uint32_t i = 0; i < device_count_; ++i)
      if (!core_.backend->synchronize(Device{static_cast<int32_t>(i)}).ok())
        core_.log.write(LogLevel::kWarning, "A device could not be waited for: %s", last_message());
    if ((flags_ & GMM_CONTEXT_NO_LEAK_REPORT) == 0) report_leaks();
    ipc_.clear();
    pauser_.clear();
    // Graphs may outlive the context; their memory does not.
    for (Heap *heap : captures_.heaps) heap->capture.graph->release();
    while (Heap *heap = heaps_.remove_last()) {
      if (!heap->close(true).ok())
        core_.log.write(LogLevel::kError, "Memory could not be given back: %s", last_message());
      core_.allocator.destroy(static_cast<gmm_heap *>(heap));
    }
    pins_.clear();
    core_.deferred_release.retry(*core_.backend);
    core_.backend->destroy();
  }
  magic_ = 0;
  const HostAllocator allocator = core_.allocator;
  // A thread that ends still looks at it, until the trace and the heaps have left their registries.
  Gate *gate = core_.gate;
  gmm_context *self = static_cast<gmm_context *>(this);
  self->~gmm_context();
  if (gate != nullptr) os::discard(gate, os::page_size());
  allocator.deallocate(self, sizeof(gmm_context));
  release_thread_records();
}

// --- Heaps ------------------------------------------------------------------------------------------------------

Status Context::add_heap(Heap &heap, gmm_tag tag_number) {
  Tag *tag = tags_.get(tag_number);
  if (tag == nullptr || tag->ending.load(std::memory_order_seq_cst) != 0) return TagTable::unknown(tag_number);
  const int32_t device = heap.options().device.ordinal;
  Quotas &quotas = heap.quotas();
  quotas.each[0] = &held_;
  quotas.each[Quotas::kDevice] = &held_on_[device];
  quotas.each[2] = &tag->held;
  quotas.each[3] = &tag->held_on[device];
  GMM_TRY(heap.init());
  return heaps_.add(heap) ? Status() : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a heap.");
}

Status Context::heap_for(Kind kind, Device device, gmm_tag tag_number, Heap **out) {
  Tag *tag = tags_.get(tag_number);
  if (tag == nullptr) return TagTable::unknown(tag_number);
  std::atomic<Heap *> &place = tag->heaps[static_cast<uint32_t>(kind)][device.ordinal];
  *out = place.load(std::memory_order_acquire);
  if (*out != nullptr) return Status();
  LockGuard guard(make_heap_mutex_);
  *out = place.load(std::memory_order_acquire);
  if (*out != nullptr) return Status();
  HeapOptions options;
  options.kind = kind;
  options.device = device;
  options.tag = tag_number;
  gmm_heap *heap = nullptr;
  GMM_TRY(make_heap(options, GMM_NO_LIMIT, &heap));
  *out = heap;
  place.store(heap, std::memory_order_release);
  return Status();
}

Status Context::make_heap(HeapOptions options, uint64_t limit, gmm_heap **out) {
  if ((core_.traits(options.device).kinds >> static_cast<uint32_t>(options.kind) & 1) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED, "Device %d has no %s memory; gmm_device_query() tells which kinds it has.",
                options.device.ordinal, kind_name(options.kind));
  if (const Tag *tag = tags_.get(options.tag); tag != nullptr) options.tag_name = tag->name;
  void *memory = retired_heaps_.take();
  if (memory == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a heap.");
  gmm_heap *heap = ::new (memory) gmm_heap(core_, backups_, captures_, options, this);
  heap->own_quota().set_limit(limit);
  const Status status = add_heap(*heap, options.tag);
  if (!status.ok()) {
    core_.allocator.destroy(heap);
    return status;
  }
  if (trace_.running()) trace_.heap_created(*heap);
  *out = heap;
  return Status();
}

Status Context::end_heap(gmm_heap *heap) {
  GMM_TRY(core_.backend->synchronize(heap->options().device));
  if (!heaps_.begin_end(*heap))  // nobody pauses, trims or counts the heap until it has ended
    return fail(GMM_ERROR_BUSY,
                "gmm_heap_destroy(): a ticket holds a pause or resume of the heap; commit or cancel it first.");
  LockGuard captures_guard(captures_.mutex);
  Status status = check_captures_of(*heap);
  if (status.ok()) status = heap->close(false);
  heaps_.finish_end(*heap, status.ok());
  GMM_TRY(status);
  orphan_captures_of(*heap);
  if (trace_.running()) trace_.heap_destroyed(heap->fast.serial);
  retire(heap);
  return Status();
}

// Nobody has memory of the tag: no live block, no user's heap, no graph.
Status Context::check_unused(Tag &tag) {
  gmm_scope_desc scope = {};
  scope.flags = GMM_SCOPE_TAG;
  scope.tag = tag.number;
  return heaps_.for_each(scope, [&](Heap &heap) -> Status {
    const HeapOptions &options = heap.options();
    const Heap *shared = tag.heaps[static_cast<uint32_t>(options.kind)][options.device.ordinal].load();
    if (&heap != shared)
      return fail(GMM_ERROR_BUSY, "gmm_tag_destroy: %s has the tag \"%s\"; destroy it first.",
                  options.capture != 0 ? "a graph" : "a heap of gmm_heap_create()", tag.name);
    const uint64_t blocks = heap.totals().live_blocks;
    if (blocks == 0) return Status();
    return fail(GMM_ERROR_BUSY,
                "gmm_tag_destroy: the tag \"%s\" has %" PRIu64
                " live blocks of %s memory on device %d; free them "
                "first.",
                tag.name, blocks, kind_name(options.kind), options.device.ordinal);
  });
}

Status Context::end_shared_heaps(Tag &tag) {
  for (auto &of_kind : tag.heaps)
    for (std::atomic<Heap *> &place : of_kind) {
      Heap *heap = place.load(std::memory_order_acquire);
      if (heap == nullptr) continue;
      place.store(nullptr, std::memory_order_release);
      const Status status = end_heap(static_cast<gmm_heap *>(heap));
      if (status.ok()) continue;
      place.store(heap, std::memory_order_release);
      return status;
    }
  return Status();
}

Status Context::destroy_tag(gmm_tag number) {
  Tag *tag = tags_.get(number);
  if (tag == nullptr) return TagTable::unknown(number);
  GMM_TRY(check_unused(*tag));
  GMM_TRY(tags_.begin_end(*tag));
  // A thread that makes a heap of the tag has made it, or sees that the tag ends.
  make_heap_mutex_.lock();
  make_heap_mutex_.unlock();
  Status status = check_unused(*tag);
  if (status.ok()) status = end_shared_heaps(*tag);
  if (!status.ok()) {
    tags_.undo_end(*tag);
    return status;
  }
  tags_.end(*tag);
  return Status();
}

Status Context::configure_tag(gmm_tag number, const gmm_tag_desc &desc) {
  const Tag *known = tags_.get(number);
  const bool was_read_only =
      known != nullptr && (known->flags.load(std::memory_order_relaxed) & GMM_TAG_READ_ONLY) != 0;
  GMM_TRY(tags_.update(number, desc));
  // From now on the program may write the memory. If the tag becomes read-only again, backups from before are out of
  // date.
  if (was_read_only && (desc.flags & GMM_TAG_READ_ONLY) == 0) pauser_.forget_retained(number);
  return Status();
}

void Context::retire(gmm_heap *heap) {
  heap->magic = 0;
  heap->~gmm_heap();
  retired_heaps_.retire(heap);
}

// --- Alloc and free --------------------------------------------------------------------------------------------------

Status Context::try_allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream,
                             void **out) {
  if ((flags & GMM_ALLOC_DEDICATED) == 0 && heap.checks().guard() == 0)
    return cached_alloc(heap, size, alignment, stream, out);
  if ((flags & GMM_ALLOC_COMM) != 0) {
    CommTraits comm;
    GMM_TRY(core_.backend->comm_traits(heap.options().device, &comm));
    return dedicated_alloc(heap, size, out, &comm);
  }
  return dedicated_alloc(heap, size, out, nullptr, (flags & GMM_ALLOC_PAUSED) != 0);
}

Status Context::allocate(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream, void **out) {
  const bool paused = (flags & GMM_ALLOC_PAUSED) != 0;  // it has no memory that a graph could own
  if (paused || !may_be_captured(heap, stream)) return allocate_from(heap, size, alignment, flags, stream, out);
  Heap *of_capture = nullptr;
  GMM_TRY(enter_capture(heap, stream, &of_capture));
  if (of_capture == nullptr) return allocate_from(heap, size, alignment, flags, stream, out);
  const Status status = allocate_from(*of_capture, size, alignment, flags, stream, out);
  of_capture->capture.users.fetch_sub(1, std::memory_order_release);
  return status;
}

template <typename Fn>
Status Context::trim_and_retry(Status status, const char *what, Heap &heap, uint64_t size, Fn again) {
  constexpr uint32_t kMaxAttempts = 100;
  const auto short_of_memory = [&] {
    return status.code() == GMM_ERROR_OUT_OF_MEMORY || status.code() == GMM_ERROR_LIMIT_EXCEEDED ||
           status.code() == GMM_ERROR_OUT_OF_HOST_MEMORY;
  };
  if (!short_of_memory()) return status;
  // Everything that is free anywhere, after the work that may use it.
  uint64_t released = 0;
  gmm_scope_desc everything = {};
  // Again while that helps: another thread may have taken what a trim gave back, or have given back what is wanted. A
  // trim that fails gave back what it could.
  constexpr uint32_t kTrims = 3;
  for (uint32_t i = 0; i < kTrims && !status.ok() && short_of_memory(); ++i) {
    trim(everything, &released).ignore();
    status = again();
    if (released == 0) break;
  }
  for (uint32_t attempt = 1; !status.ok() && short_of_memory() && attempt <= kMaxAttempts; ++attempt) {
    gmm_oom_info info = {};
    info.struct_size = sizeof info;
    info.device = heap.options().device.ordinal;
    info.kind = static_cast<gmm_kind>(heap.options().kind);
    info.tag = heap.options().tag;
    info.requested_bytes = size;
    info.reserved_bytes = held_on_[info.device].held();
    info.attempt = attempt;
    info.cause = status.code();
    if (!limits_.ask(info)) break;
    status = again();
    if (status.ok() || !short_of_memory()) continue;
    trim(everything, &released).ignore();
    status = again();
  }
  if (status.ok()) return status;
  heap.caches().count(HeapTotals{.failures = 1});
  const Shortage shortage(heaps_, tags_, heap);
  if (limits_.may_report(monotonic_ms()))
    shortage.report(core_.log, *core_.backend, what, size, held_on_[heap.options().device.ordinal].held());
  const Status explained = shortage.explain(status, what, size);
  if (trace_.running()) trace_.failed(explained, size, &heap);
  return explained;
}

Status Context::allocate_from(Heap &heap, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream,
                              void **out, Status failure) {
  void *memory = nullptr;
  Status status = failure.ok() ? try_allocate(heap, size, alignment, flags, stream, &memory) : failure;
  if (!status.ok() && (flags & GMM_ALLOC_PAUSED) == 0)
    status = trim_and_retry(status, "gmm_alloc", heap, size,
                            [&] { return try_allocate(heap, size, alignment, flags, stream, &memory); });
  if (!status.ok()) return status;
  const bool is_checked = core_.checks != 0 && (flags & GMM_ALLOC_PAUSED) == 0;
  bool paused = is_checked && !heap.checks().allocated(memory, size, stream);
  if ((flags & GMM_ALLOC_ZERO) != 0 && !paused) status = clear(heap, memory, size, stream, &paused);
  if (!status.ok() || paused) {
    MessageGuard message_guard;
    cached_free(core_, memory, stream).ignore();  // the block was made just now
    // Memory that a pause took in between cannot be filled. Memory that is allocated from now on is active.
    return paused ? allocate(heap, size, alignment, flags, stream, out) : status;
  }
  if ((core_.checks & kCheckStacks) != 0) Heap::note_stack(core_, memory, core_.stacks.here());
  if (__builtin_expect(trace_.running(), 0)) trace_.allocated(heap, memory, size, alignment, flags, stream);
  *out = memory;
  return status;
}

Status Context::free(void *memory, gmm_stream stream) {
  const uint64_t word = core_.gate->word.load(std::memory_order_relaxed);
  if (word == 0) return check(this);
  if ((core_.checks & kCheckStacks) != 0) Heap::note_stack(core_, memory, core_.stacks.here(), true);
  const bool is_traced = word == kGateWatched;
  const Status status = is_traced ? trace_.freed(core_, memory, stream) : free_past_cache(core_, memory, stream);
  if (__builtin_expect(status.ok() && !is_traced && trace_.running(), 0)) trace_.freed_at_begin(memory, stream);
  if (__builtin_expect(status.code() != GMM_ERROR_UNKNOWN_POINTER, 1)) return status;
  Range range;
  if (pins_.find(memory, &range))
    return fail(GMM_ERROR_INVALID_KIND, "gmm_free(%p): the memory is pinned and the caller's own; use gmm_unpin().",
                memory);
  if (ipc_.imports.find(memory, &range))
    return fail(GMM_ERROR_INVALID_KIND, "gmm_free(%p): the memory is imported; use gmm_ipc_close().", memory);
  return status;
}

Status Context::name_block(const void *memory, const char *name) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_name", &block));
  const CacheEntry entry{reinterpret_cast<void *>(block.base), block.slot};
  GMM_TRY(block.heap->set_name(entry, name));
  if (trace_.running()) trace_.named(entry.block, name == nullptr ? "" : name);
  return Status();
}

Status Context::reserve(Heap &heap, uint64_t bytes) {
  const Status status = heap.reserve(bytes);
  return status.ok() ? status
                     : trim_and_retry(status, "gmm_heap_reserve", heap, bytes, [&] { return heap.reserve(bytes); });
}

// Under the heap's lock: a pause that took the memory's region out of use before is seen; one that comes after waits
// for the fill, as it synchronises the device between that and the unmapping.
Status Context::clear(Heap &heap, void *memory, uint64_t size, gmm_stream stream, bool *paused) {
  Backend &backend = *core_.backend;
  if (heap.options().kind != Kind::kVmm) return backend.fill(heap.options().device, stream, memory, 0, size);
  LockGuard guard(heap.mutex);
  Block block;
  *paused = find_block(core_, memory, &block) && block.span->region->paused.load(std::memory_order_relaxed) != 0;
  return *paused ? Status() : backend.fill(heap.options().device, stream, memory, 0, size);
}

// --- Giving back -------------------------------------------------------------------------------------------------

Status Context::trim(const gmm_scope_desc &scope, uint64_t *bytes) {
  *bytes = 0;
  core_.deferred_release.retry(*core_.backend);
  collect_ended_captures();
  // A failure of one heap does not keep the others from it.
  Status first;
  const auto give_back = [&](Heap &heap) -> Status {
    keep_first(&first, [&] { return heap.drain_caches(true); });
    heap.free_held_for_importers();
    pauser_.give_up_freed(heap);
    keep_first(&first, [&] { return heap.reclaim().release(true, bytes); });
    return Status();
  };
  heaps_.for_each(scope, give_back).ignore();
  collect_ended_captures();
  return first;
}

// The driver is asked for more memory: pages that nobody wants serve first.
void Context::return_spares(Device device, uint64_t bytes, const Heap *but) {
  if (core_.defer_depth.load(std::memory_order_acquire) != 0) return;
  MessageGuard message_guard;
  uint64_t released = 0;
  const auto give_back = [&](Heap &heap) -> Status {
    if (&heap != but && heap.options().device == device && !heap.mutex.has_operation())
      heap.reclaim().return_spares(bytes, &released).ignore();  // they stay for the next who asks
    return Status();
  };
  heaps_.for_each(give_back, false).ignore();  // it never fails
}

Status Context::trim_everything(uint64_t *bytes) {
  gmm_scope_desc everything = {};
  GMM_TRY(trim(everything, bytes));
  *bytes += backups_.trim();
  return Status();
}

// A trim for want of device memory keeps page-locked host memory: it does not help there, and is dear to lock again.
Status Context::trim_for_program(const gmm_scope_desc &scope, uint64_t *bytes) {
  *bytes = 0;
  if (core_.defer_depth.load(std::memory_order_acquire) != 0) {
    trim_pending_.store(1, std::memory_order_release);
    return unchanged("gmm_trim: the trim is put off to the matching gmm_defer_end().");
  }
  const uint64_t began = trace_.time();
  const Status status = scope.flags == 0 ? trim_everything(bytes) : trim(scope, bytes);
  return traced(status, [&] { trace_.trimmed(*bytes, began); });
}

Status Context::reset() {
  gmm_scope_desc everything = {};
  GMM_TRY(heaps_.for_each(everything, [&](Heap &heap) -> Status {
    LockGuard guard(heap.mutex);
    if (heap.any_capturing())
      return fail(GMM_ERROR_CAPTURING, "gmm_reset(): a stream is being captured; end the capture first.");
    bool is_imported = false;
    heap.for_each_region([&](Region &region) {
      for_each_extent(region, [&](const Extent &extent) {
        is_imported = is_imported || extent.importers.load(std::memory_order_acquire) != 0;
      });
    });
    return is_imported ? fail(GMM_ERROR_BUSY, "gmm_reset(): importers hold memory; let them close it first.")
                       : Status();
  }));
  for (uint32_t i = 0; i < device_count_; ++i) GMM_TRY(core_.backend->synchronize(Device{static_cast<int32_t>(i)}));
  GMM_TRY(heaps_.for_each(everything, [&](Heap &heap) -> Status { return heap.reset(); }));
  pauser_.forget_all();
  if (trace_.running()) trace_.was_reset();
  uint64_t bytes = 0;
  return trim(everything, &bytes);
}

Status Context::defer_begin() {
  core_.defer_depth.fetch_add(1, std::memory_order_acq_rel);
  decommit_.wait_for_round();
  return Status();
}

Status Context::defer_end() {
  uint32_t depth = core_.defer_depth.load(std::memory_order_relaxed);
  do {
    if (depth == 0) return fail(GMM_ERROR_UNBALANCED, "gmm_defer_end(): there was no gmm_defer_begin().");
  } while (!core_.defer_depth.compare_exchange_weak(depth, depth - 1, std::memory_order_acq_rel));
  if (depth != 1 || trim_pending_.exchange(0, std::memory_order_acq_rel) == 0) return Status();
  uint64_t bytes = 0;
  return trim_everything(&bytes);
}

}  // namespace gmm
