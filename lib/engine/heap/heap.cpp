// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>

#include "base/thread_record.h"
#include "engine/heap/block.h"
#include "engine/heap/capture.h"
#include "engine/heap/thread_cache.h"

namespace gmm {
namespace {

// The first slot is a large block's.
Span *span_of_large(std::atomic<uint64_t> *slot) {
  return reinterpret_cast<Span *>(reinterpret_cast<uintptr_t>(slot) - offsetof(Span, slots));
}

}  // namespace

HeapPart::HeapPart(Heap &heap)
    : core_(heap.core_),
      options_(heap.options_),
      mutex_(heap.mutex),
      caches_(heap.caches_),
      quotas_(heap.quotas_),
      own_quota_(heap.own_quota_),
      policy_(heap.policy_),
      runs_(heap.runs_),
      slabs_(heap.slabs_),
      streams_(heap.streams_),
      notes_(heap.notes_),
      extents_(heap.extents_),
      reclaim_(heap.reclaim_) {}

Heap::Heap(Core &core, BackupStore &backups, CaptureHeaps &captures, const HeapOptions &options)
    : core_(core),
      captures_(captures),
      options_(options),
      runs_(core, this, options.whole_regions()),
      slabs_(core, this),
      streams_(core.backend, core.ended_streams, options.device, core.allocator),
      notes_(core, streams_),
      extents_(core, this, backups, options_, quotas_, runs_),
      not_waited_for_(core.allocator),
      forgotten_(core.allocator) {
  quotas_.each[4] = &own_quota_;
  streams_.wait_with(mutex);
  mutex.at_end_of_operation([](void *self) { static_cast<Heap *>(self)->end_operation(); }, this);
  fast.gate = core.gate;
  fast.last_uncaptured = core.last_uncaptured;
  if (core.last_uncaptured != UINTPTR_MAX) streams_.expect_captures();
  if (options.capture != 0) streams_.hold_for_graph();
}

Heap::~Heap() {
  if (fast.serial != 0) HeapCache::end_heap(this);
  caches_.end_all();
  streams_.clear();
}

Status Heap::init() { return HeapCache::begin_heap(this); }

// --- Blocks out ------------------------------------------------------------------------------------------------------

Status Heap::take(const BlockRequest &request, CacheEntry *out, uint32_t *count) {
  *count = 0;
  core_.ended_streams.remove(request.key.stream);  // the program allocates on the stream, so it lives
  const auto take_with = [&](Effort effort) {
    LockGuard guard(mutex);
    return take_locked(request, effort, out, count);
  };
  const Status status = take_with(Effort::kNoGrowth);
  if (!status.ok() || *count != 0 || !request.may_grow) return status;
  captures_.release_ended();
  core_.ask_for_spares(options_.device, request.size, this);
  GMM_TRY(drain_for_growth());
  growth_.wait_to_move(request.size);
  return take_with(Effort::kGrow);
}

bool Heap::take_free(const BlockRequest &request, CacheEntry *out, uint32_t *count) {
  *count = 0;
  core_.ended_streams.remove(request.key.stream);
  return take_locked(request, Effort::kNow, out, count).ok() && *count != 0;
}

Status Heap::take_locked(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count) {
  const bool small = request.size <= kMaxSmall && request.alignment <= kGranule && !request.dedicated;
  return small ? take_small(request, effort, out, count) : take_run(request, effort, out, count);
}

Status Heap::take_small(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count) {
  const uint32_t class_index = small_class(request.size);
  const bool now = effort == Effort::kNow;
  const uint64_t bit = now ? streams_.known_bit(request.key) : streams_.bit_of(request.key);
  if (bit == 0 && !now) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember another stream.");
  Span *slab = nullptr;
  while (*count < request.wanted && (slab = slabs_.find(class_index, StreamOrder::own_of(bit))) != nullptr)
    *count += slabs_.take(slab, request.wanted - *count, out + *count);
  if (*count == 0) {
    // A slab is made for a first block only. That of another stream comes before growth.
    Span *run = nullptr;
    const uint64_t bytes = slab_granules(class_index) * kGranule;
    if (now && !slabs_.has_spare()) return Status();
    GMM_TRY(find_run(bytes, kGranule, request.key, now ? effort : Effort::kNoGrowth, RunUse::kSlab, &run));
    if (run == nullptr && effort == Effort::kGrow) {
      slab = slabs_.first(class_index);
      if (slab != nullptr && streams_.put_behind(request.key, slab->streams).ok())
        streams_.order(slab, bit);
      else
        GMM_TRY(find_run(bytes, kGranule, request.key, effort, RunUse::kSlab, &run));
    }
    if (run != nullptr) {
      slab = make_slab(class_index, run);
      if (slab == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a slab.");
    }
    if (slab == nullptr) return Status();
    *count = slabs_.take(slab, request.wanted, out);
  }
  policy_.took(*count * small_class_size(class_index));
  return Status();
}

Status Heap::take_run(const BlockRequest &request, Effort effort, CacheEntry *out, uint32_t *count) {
  if (effort == Effort::kNoGrowth && request.back_count != 0) {
    const uint64_t bit = bit_of_free(request.key);
    for (uint32_t i = 0; i < request.back_count; ++i) put_back_large(span_of_large(request.back[i].slot), bit);
  }
  Span *run = nullptr;
  if (request.dedicated) {
    uint64_t released = 0;
    reclaim_.release_locked(0, &released).ignore();  // a refusal keeps the memory for the next try
    GMM_TRY(request.paused ? extents_.reserve_elastic(Extents::rounded(request.size), &run)
                           : growth_.grow_dedicated(request.size, request.comm, &run));
  } else {
    const uint64_t alignment = request.alignment < kGranule ? kGranule : request.alignment;
    GMM_TRY(find_run(granules(request.size) * kGranule, alignment, request.key, effort, RunUse::kBlock, &run));
    if (run == nullptr) return Status();
    policy_.took(request.size);
  }
  *out = make_large(run);
  *count = 1;
  return Status();
}

// The run, which is in no list, becomes a block.
CacheEntry Heap::make_large(Span *run) {
  run->slot(0).store(0, std::memory_order_relaxed);
  run->streams = 0;
  run->state.store(SpanState::kLarge, std::memory_order_release);
  core_.page_map.set(run->begin(), run->region->elastic ? kExtentAlignment : run->bytes(), run);
  ++run->region->live_spans;
  return CacheEntry{reinterpret_cast<void *>(run->begin()), &run->slot(0)};
}

// A free run in no list, of `bytes`, whole granules. *out is NULL when none was found without growth.
Status Heap::find_run(uint64_t bytes, uint64_t alignment, StreamKey key, Effort effort, RunUse use, Span **out) {
  const uint64_t count = bytes / kGranule;
  *out = nullptr;
  if (effort == Effort::kNow) {
    Span *run = runs_.free().find(count, alignment, StreamOrder::own_of(streams_.known_bit(key)));
    if (run == nullptr || !runs_.can_carve_now(run, bytes, alignment)) return Status();
    return runs_.carve(run, bytes, alignment, out);
  }
  const uint64_t bit = streams_.bit_of(key), own = StreamOrder::own_of(bit);
  if (bit == 0) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember another stream.");
  // Memory that other streams have finished with counts as free for all, and merges.
  if (streams_.known_streams() > 1 && policy_.questions.any()) runs_.clear_done(streams_, policy_);
  Span *run = runs_.free().find(count, alignment, own);
  if (run == nullptr) {
    if (effort == Effort::kNoGrowth) return Status();
    if (streams_.known_streams() > 1 && runs_.clear_done(streams_, policy_))
      run = runs_.free().find(count, alignment, own);
  }
  for (uint32_t pass = 0; run == nullptr && pass < 2; ++pass) {
    if (pass == 1) runs_.merge_all(true);
    run = runs_.free().find(count, alignment, ~uint64_t{0});
    if (run == nullptr) continue;
    MessageGuard message_guard;
    // A refusal (graph capture) is no failure: the heap grows instead.
    if (streams_.put_behind(key, run->streams).ok())
      streams_.order(run, bit);
    else
      run = nullptr;
  }
  if (run == nullptr) {
    GMM_TRY(growth_.grow(bytes, alignment, key, use, &run));
    if (!options_.whole_regions() && policy_.has_freed()) passing_.store(kPassing, std::memory_order_relaxed);
  }
  return runs_.carve(run, bytes, alignment, out);
}

// A slab in the place of a run that is in no list. NULL: there is no host memory, and the run is listed.
Span *Heap::make_slab(uint32_t class_index, Span *run) {
  Span *slab = slabs_.make(class_index, *run);
  if (slab == nullptr)
    runs_.make_free(run);
  else
    runs_.replace(run, slab);
  return slab;
}

// --- Blocks in -------------------------------------------------------------------------------------------------------

Span *Heap::retire_slab(Span *slab) {
  Span *run = runs_.new_span(SpanState::kFree, slab->begin(), slab->bytes(), slab->region);
  // Without host memory the slab stays a slab: nothing is lost, it serves its class again.
  if (run == nullptr) {
    slabs_.list_last(slab);
    return slab;
  }
  run->streams = slab->streams;
  run->stamp = slab->stamp;
  slabs_.retire(slab);
  runs_.replace(slab, run);
  return runs_.make_free(run);
}

void Heap::put_back_large(Span *span, uint64_t bit) {
  const ByteRange freed{span->begin(), span->bytes()};
  --span->region->live_spans;
  // Work of other streams may use its spares.
  if (span->region->elastic)
    for_each_extent(*span->region, [&](const Extent &extent) { bit |= extent.is_spare ? extent.streams : 0; });
  streams_.order(span, bit);
  Span *run = runs_.make_free(span);
  if (fast.has_paused.load(std::memory_order_relaxed) != 0) extents_.forget_contents(freed, *run);
}

void Heap::put_back_one(const CacheEntry &entry, uint64_t bit) {
  Span *span = core_.page_map.find(entry.block);
  if (!span->is(SpanState::kSlab)) return put_back_large(span, bit);
  streams_.order(span, span->streams | bit);
  if (!slabs_.put_back(span, entry.block)) return;
  const ByteRange freed{span->begin(), span->bytes()};
  Span *run = retire_slab(span);
  if (fast.has_paused.load(std::memory_order_relaxed) != 0 && run->is(SpanState::kFree))
    extents_.forget_contents(freed, *run);
}

uint64_t Heap::bit_of_free(StreamKey key) {
  return streams_.bit_of_free(key, key.stream == GMM_STREAM_PER_THREAD ? current_thread_id() : 0, core_.log);
}

void Heap::put_back(const CacheEntry *entries, uint32_t count, StreamKey key) {
  LockGuard guard(mutex);
  if (count == 0) return;
  const uint64_t bit = bit_of_free(key);
  for (uint32_t i = 0; i < count; ++i) put_back_one(entries[i], bit);
}

bool Heap::put_back_now(const CacheEntry &entry, StreamKey key) {
  if (key.stream == GMM_STREAM_PER_THREAD || fast.has_paused.load(std::memory_order_relaxed) != 0) return false;
  const uint64_t bit = streams_.known_bit(key);
  if (bit == 0 || !runs_.has_spares(1)) return false;  // a slab that is free whole becomes a run
  streams_.note_free_on_last();
  entry.slot->store(0, std::memory_order_relaxed);
  put_back_one(entry, bit);
  return true;
}

uint64_t Heap::taken_bytes(const Span &span) {
  LockGuard guard(mutex);
  return Extents::bytes_of(*span.region);
}

// A pause calls the program for its progress, which may wait for a thread that ends: see put_off_forgetting().
void Heap::end_thread(uint64_t thread) {
  const StreamKey stream{GMM_STREAM_PER_THREAD, thread};
  if (!mutex.lock_unless_operation([&] { return put_off_forgetting(stream); })) return;
  const UnlockAtEnd guard(mutex);
  forget_locked(stream);
}

Status Heap::record_use(const CacheEntry &block, gmm_stream stream) {
  LockGuard guard(mutex);
  return notes_.record(block, StreamKey{stream, current_thread_id()});
}

Status Heap::set_name(const CacheEntry &block, const char *name) {
  LockGuard guard(mutex);
  if (block.slot->load(std::memory_order_relaxed) == 0)
    return fail(GMM_ERROR_ALREADY_FREED, "gmm_name(%p): another thread freed the block.", block.block);
  return notes_.set_name(block, name);
}

void Heap::note_stack(Core &core, const void *memory, uint32_t stack, bool is_free) {
  Block block;
  if (stack == 0 || !find_block(core, memory, &block) || block.base != reinterpret_cast<uintptr_t>(memory) ||
      !block.heap->mutex.lock_unless_operation())
    return;
  const UnlockAtEnd guard(block.heap->mutex);
  block.heap->notes_.set_stack(CacheEntry{const_cast<void *>(memory), block.slot}, stack, is_free);
}

Status Heap::order_after_uses(const CacheEntry &block, StreamKey key, bool *held) {
  bool other_thread = false;
  {
    LockGuard guard(mutex);
    other_thread = notes_.used_by_other_threads(block.block, key.thread);
  }
  // Only its own thread can name a per-thread stream, so only the whole device can be waited for. The heap waits
  // without its lock, as a callback may free memory.
  if (other_thread) GMM_TRY(core_.backend->synchronize(options_.device));
  LockGuard guard(mutex);
  return notes_.order_after(block, key, other_thread, held);
}

void Heap::free_held_for_importers(bool may_wait) {
  const auto put_off = [&] {
    frees_held_later_ = frees_held_later_ || !may_wait;
    return !may_wait;
  };
  if (!mutex.lock_unless_operation(put_off)) return;
  const UnlockAtEnd guard(mutex);
  free_held_locked();
}

void Heap::free_held_locked() {
  frees_held_later_ = false;
  notes_.free_held([&](const CacheEntry &entry, uint64_t bits) { put_back_one(entry, bits); });
}

void Heap::forget_stream(gmm_stream stream) {
  // A pause or resume may have the heap for minutes. It emptied the caches of a heap with paused memory before, nothing
  // enters them, and it asks nobody about a stream. So what they know of the stream is empty bins, which a trim ends.
  const auto put_off = [&] { return put_off_forgetting(StreamKey{stream, 0}); };
  if (!mutex.lock_unless_operation(put_off)) return;
  mutex.unlock();
  caches_.forget_stream(stream);
  checks_.drain(&stream);
  if (!mutex.lock_unless_operation(put_off)) return;
  const UnlockAtEnd guard(mutex);
  forget_locked(StreamKey{stream, 0});
}

void Heap::forget_locked(StreamKey stream) {
  if (stream.thread != 0) return streams_.end_thread(stream.thread);
  streams_.forget(stream.stream);
  checks_.end_looks();
  notes_.forget_stream(stream.stream);
}

// While an operation has the lock and cannot end. False: it is no pause or resume, or there is no host memory.
bool Heap::put_off_forgetting(StreamKey stream) {
  if (!may_put_off_ || fast.has_paused.load(std::memory_order_relaxed) == 0) return false;
  for (const StreamKey &known : forgotten_)
    if (known == stream) return true;
  return forgotten_.push_back(stream);
}

// Does the work that was put off until now. A wait inside of a free frees nothing: its caller works on a slab or run.
void Heap::end_operation() {
  checks_.end_operation();
  for (const StreamKey &stream : forgotten_) forget_locked(stream);
  forgotten_.clear();
  if (may_put_off_ && frees_held_later_) free_held_locked();
  may_put_off_ = false;
}

void Heap::end_of_graph() {
  LockGuard guard(mutex);
  streams_.end_of_graph();
}

// --- The whole heap --------------------------------------------------------------------------------------------------

Status Heap::reset() {
  GMM_TRY(drain_caches(true));
  caches_.forget_live();
  LockGuard guard(mutex);
  checks_.end_blocks();
  notes_.clear();
  not_waited_for_.clear();
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region)) {
    for (Span *span = region->first; span != nullptr; span = span->after) {
      if (span->live()) {
        for (uint32_t i = 0; i < span->blocks(); ++i) span->slot(i).store(0, std::memory_order_relaxed);
        span->streams = 0;
        if (span->is(SpanState::kSlab)) {
          span = retire_slab(span);
        } else {
          --region->live_spans;
          span = runs_.make_free(span);
        }
      } else if (span->is(SpanState::kFree)) {
        runs_.unlist(span);
        span->streams = 0;  // the devices were waited for
        span = runs_.make_free(span);
      }
    }
  }
  return Status();
}

Status Heap::drain_caches(bool wait) {
  Vector<CacheEntry> per_thread(core_.allocator);
  if (wait) checks_.drain();
  caches_.drain(wait ? &per_thread : nullptr);
  if (wait) {
    LockGuard guard(mutex);
    while (!not_waited_for_.empty() && per_thread.push_back(not_waited_for_.back()))
      not_waited_for_.truncate(not_waited_for_.size() - 1);
  }
  if (per_thread.empty()) return Status();
  // Without a lock, as a callback in a stream may free memory.
  const Status status = core_.backend->synchronize(options_.device);
  if (!status.ok()) {
    // As freed by a stream that nobody can wait for: they are kept for the next try.
    LockGuard guard(mutex);
    for (const CacheEntry &entry : per_thread)
      if (!not_waited_for_.push_back(entry))
        core_.log.write(LogLevel::kError, "A free block is lost: no host memory, and the device cannot be waited for.");
    return status;
  }
  put_back(per_thread.data(), static_cast<uint32_t>(per_thread.size()), StreamKey{GMM_STREAM_PER_THREAD, 0});
  return Status();
}

// Empties the caches without waiting, unless those of other threads were emptied too often of late; then those of idle
// threads alone, if they hold much.
Status Heap::drain_for_growth() {
  uint64_t quiet = 0;
  const uint32_t others = caches_.drain_transfers(current_thread_id(), &quiet);
  bool all = false;
  {
    LockGuard guard(mutex);
    if (frees_held_later_) free_held_locked();
    all = others == 0 || policy_.drains.any();
    if (all) policy_.drains.spend(others * GrowthPolicy::kDrainCost);
  }
  if (all) return drain_caches(false);
  if (quiet > GrowthPolicy::kMostIdle) caches_.drain_quiet();
  return Status();
}

// As an operation: a question about the heap does not wait for the pages.
Status Heap::reserve(uint64_t bytes) {
  OperationGuard guard(*this);
  if (bytes != 0) {
    GMM_TRY(provide_bookkeeping(bytes));
    GMM_TRY(growth_.reserve(bytes));
  }
  reclaim_.set_reserve(bytes);
  return Status();
}

Status Heap::compact(Compaction *work) {
  if (options_.kind != Kind::kVmm || work->is_over() || mutex.has_operation()) return Status();
  GMM_TRY(drain_caches(false));
  free_held_for_importers(false);
  uint64_t most = 0;  // each extent moves once at most
  for (bool has_begun = false, more = true; more; has_begun = true) {
    if (has_begun) yield_thread();
    if (!mutex.lock_unless_operation()) return Status();
    const UnlockAtEnd guard(mutex);
    if (!has_begun) {
      if (!compactor_.begin()) return Status();
      most = work->moved + free_bytes();
    }
    const Status status = compactor_.step(work, &more);
    extents_.end_empty_regions();
    GMM_TRY(status);
    more = more && work->moved < most;
  }
  return work->is_live ? compact_live(work) : Status();
}

// An operation for each extent: a question about the heap does not wait for the device.
Status Heap::compact_live(Compaction *work) {
  if (!work->is_over()) GMM_TRY(reclaim_.wait_for_external());
  while (!work->is_over()) {
    if (!mutex.lock_unless_operation()) return Status();
    const UnlockAtEnd guard(mutex);
    if (!compactor_.is_undisturbed()) return Status();
    const Compactor::Choice choice = compactor_.choose(*work);
    if (choice.extent == nullptr) return Status();
    bool capturing = false;  // the stream that copies
    GMM_TRY(backend().stream_is_capturing(options_.device, GMM_STREAM_PER_THREAD, &capturing));
    if (capturing) return Status();
    begin_operation();
    GMM_TRY(compactor_.evacuate(choice, work));
  }
  return Status();
}

uint64_t Heap::largest_free() {
  uint64_t bytes = 0;
  if (!mutex.lock_unless_operation()) return bytes;
  const UnlockAtEnd guard(mutex);
  runs_.free().for_each([&](const Span *run) { bytes = std::max(bytes, run->bytes()); });
  return bytes;
}

// Objects for the spans of many blocks, so that those of the reserve seldom need the host allocator.
Status Heap::provide_bookkeeping(uint64_t bytes) {
  const uint64_t spans = std::clamp<uint64_t>(bytes >> 19, 64, 16384);
  const uint64_t slabs = std::clamp<uint64_t>(bytes >> 21, 32, 4096);
  if (core_.spans.provide(spans) && core_.slabs.provide(slabs)) return Status();
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of %" PRIu64 " bytes.", bytes);
}

Status Heap::close(bool force) {
  const Status drained = drain_caches(true);
  if (!force) GMM_TRY(drained);
  free_held_for_importers();
  // Without a lock, as a callback in a stream may free memory; and without host memory, of which there may be none.
  if (!force) GMM_TRY(reclaim_.wait_for_device());
  LockGuard guard(mutex);
  if (!force) {
    uint64_t spans = 0;
    for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region))
      spans += region->live_spans;
    if (spans != 0)
      return fail(GMM_ERROR_BUSY,
                  "The heap still has live blocks in %" PRIu64 " spans; free them before gmm_heap_destroy().", spans);
    runs_.for_each_free([](Span *run) { run->streams = 0; });
    runs_.merge_all(false);
    uint64_t released = 0;
    const uint64_t reserve = reclaim_.reserve();
    reclaim_.set_reserve(0);
    if (Status status = reclaim_.release_locked(UINT64_MAX, &released); !status.ok()) {
      reclaim_.set_reserve(reserve);
      return status;
    }
  }
  checks_.end_blocks();
  while (Region *region = runs_.regions().front()) {
    paused_.forget(*region);
    extents_.end_with_blocks(region);
  }
  slabs_.clear();
  return Status();
}

HeapTotals Heap::totals() {
  HeapTotals totals = caches_.totals();
  if (mutex.lock_unless_operation()) {
    counted_free_.store(free_bytes(), std::memory_order_relaxed);
    mutex.unlock();
  }
  totals.held = own_quota_.held();
  totals.peak_held = own_quota_.peak();
  totals.paused = extents_.paused_bytes();
  totals.foreign = paused_.foreign_bytes();
  totals.extents = extents_.count();
  totals.free_bytes += counted_free_.load(std::memory_order_relaxed);
  return totals;
}

}  // namespace gmm
