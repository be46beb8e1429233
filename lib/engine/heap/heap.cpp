// SPDX-License-Identifier: Apache-2.0
// Blocks in and out: see runs.h for free runs, slabs.h for small blocks, heap_grow.cpp for memory from the driver.
#include "engine/heap/heap.h"

#include <bit>
#include <cstddef>

#include "base/thread_record.h"
#include "engine/heap/heap_registry.h"

namespace gmm {
namespace {

// The first slot is a large block's.
Span *span_of_large(std::atomic<uint64_t> *slot) {
  return reinterpret_cast<Span *>(reinterpret_cast<uintptr_t>(slot) - offsetof(Span, slots));
}

}  // namespace

Heap::Heap(Core &core, BackupStore &backups, const HeapOptions &options)
    : core_(core),
      backups_(backups),
      options_(options),
      runs_(core, this, options.kind != Kind::kVmm),
      slabs_(core, this),
      streams_(core.backend, options.device, core.allocator),
      uses_(core, streams_),
      unsettled_(core.allocator),
      held_for_graph_(options.capture != 0) {
  quotas_.each[4] = &own_quota_;
  fast.gate = core.gate;
  fast.last_uncaptured = core.last_uncaptured;
  if (core.last_uncaptured != UINTPTR_MAX) streams_.expect_captures();
}

Heap::~Heap() {
  if (fast.serial != 0) HeapRegistry::remove(this);
  caches.end_all();
  streams_.clear();
}

Status Heap::init() { return HeapRegistry::add(this); }

Status Heap::find_run(uint64_t count, uint64_t alignment, StreamKey key, Effort effort, Span **out) {
  const uint64_t bit = streams_.bit_of(key), own = StreamOrder::own_of(bit);
  if (bit == 0) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember another stream.");
  // What other streams are done with is as good as own, and merges with it.
  if (streams_.known_streams() > 1 && growth_.may_ask()) clear_done_streams();
  if (Span *run = runs_.free().best_fit(count, alignment, own)) return runs_.carve(run, count, alignment, out);
  *out = nullptr;
  if (effort == Effort::kNoGrowth) return Status();
  if (streams_.known_streams() > 1 && clear_done_streams())
    if (Span *run = runs_.free().best_fit(count, alignment, own)) return runs_.carve(run, count, alignment, out);
  for (uint32_t pass = 0; pass < 2; ++pass) {
    if (pass == 1) runs_.merge_all(true);
    Span *run = runs_.free().best_fit(count, alignment, ~uint64_t{0});
    if (run == nullptr) continue;
    MessageGuard keep;
    // A refusal (graph capture) is no failure: the heap grows instead.
    if (!streams_.put_behind(key, run->streams).ok()) continue;
    order_behind(run, bit);
    return runs_.carve(run, count, alignment, out);
  }
  Span *run = nullptr;
  GMM_TRY(grow(count, alignment, key, &run));
  return runs_.carve(run, count, alignment, out);
}

Status Heap::new_slab(uint32_t class_index, StreamKey key, Effort effort, Span **out) {
  Span *run = nullptr;
  *out = nullptr;
  GMM_TRY(find_run(slab_granules(class_index), kGranule, key, effort, &run));
  if (run == nullptr) return Status();
  Span *slab = slabs_.make(class_index, *run);
  if (slab == nullptr) {
    runs_.make_free(run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a slab.");
  }
  runs_.replace(run, slab);
  *out = slab;
  return Status();
}

Status Heap::take_small(uint32_t class_index, StreamKey key, Effort effort, uint32_t wanted, CacheEntry *out,
                        uint32_t *count) {
  LockGuard guard(mutex);
  *count = 0;
  const uint64_t bit = streams_.bit_of(key);
  if (bit == 0) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember another stream.");
  while (*count < wanted) {
    Span *slab = slabs_.find(class_index, streams_.own_bit(key));
    if (slab == nullptr) {
      // What there is will do; a further slab is made for a first block only.
      if (*count != 0) break;
      GMM_TRY(new_slab(class_index, key, Effort::kNoGrowth, &slab));
      if (slab == nullptr && effort == Effort::kGrow) {
        slab = slabs_.first(class_index);
        if (slab != nullptr && streams_.put_behind(key, slab->streams).ok())
          order_behind(slab, bit);
        else
          GMM_TRY(new_slab(class_index, key, effort, &slab));
      }
      if (slab == nullptr) break;
    }
    *count += slabs_.take(slab, wanted - *count, out + *count);
  }
  growth_.took(*count * small_class_size(class_index));
  return Status();
}

Status Heap::take_large(uint64_t size, uint64_t alignment, StreamKey key, Effort effort, const CacheEntry *back,
                        uint32_t back_count, Span **out) {
  LockGuard guard(mutex);
  *out = nullptr;
  if (back_count != 0) {
    const uint64_t bit = bit_of_free(key);
    growth_.freed();
    for (uint32_t i = 0; i < back_count; ++i) put_back_large(span_of_large(back[i].slot), bit);
  }
  Span *run = nullptr;
  GMM_TRY(find_run(granules(size), alignment < kGranule ? kGranule : alignment, key, effort, &run));
  if (run == nullptr) return Status();
  run->slot(0).store(0, std::memory_order_relaxed);
  run->streams = 0;
  run->state.store(SpanState::kLarge, std::memory_order_release);
  core_.page_map.set(run->begin(), run->bytes(), run);
  ++run->region->live_spans;
  growth_.took(size);
  *out = run;
  return Status();
}

Status Heap::take_dedicated(uint64_t size, Span **out) {
  LockGuard guard(mutex);
  *out = nullptr;
  uint64_t released = 0;
  release_free_locked(0, &released).ignore();  // a refusal keeps the memory for the next try
  const uint64_t bytes = (size + kExtentAlignment - 1) & ~(kExtentAlignment - 1);
  Span *run = nullptr;
  if (options_.kind == Kind::kVmm) {
    Region *region = nullptr;
    uint64_t wanted = bytes;
    GMM_TRY(charge(bytes, &wanted));
    Status status = reserve_region(bytes, true, &region);
    if (status.ok()) {
      region->dedicated = true;
      Fill fill;
      fill.hole = region->first;
      status = add_extent(&fill, bytes);
      run = fill.filled;
      if (!status.ok()) end_region(region);
    }
    if (!status.ok()) {
      quotas_.refund(bytes);
      return status;
    }
  } else {
    GMM_TRY(grow_plain(bytes, bytes, true, &run));
  }
  run->slot(0).store(0, std::memory_order_relaxed);
  run->state.store(SpanState::kLarge, std::memory_order_release);
  core_.page_map.set(run->begin(), run->bytes(), run);
  ++run->region->live_spans;
  *out = run;
  return Status();
}

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
  if (fast.has_paused.load(std::memory_order_relaxed) != 0) forget_freed(*span);
  --span->region->live_spans;
  order_behind(span, bit);
  runs_.make_free(span);
}

void Heap::put_back_one(const CacheEntry &entry, uint64_t bit) {
  Span *span = core_.page_map.find(entry.block);
  if (!span->is(SpanState::kSlab)) return put_back_large(span, bit);
  order_behind(span, span->streams | bit);
  if (slabs_.put_back(span, entry.block)) retire_slab(span);
}

uint64_t Heap::bit_of_free(StreamKey key) {
  return streams_.bit_of_free(key, key.stream == GMM_STREAM_PER_THREAD ? current_thread_id() : 0, core_.log);
}

void Heap::put_back(const CacheEntry *entries, uint32_t count, StreamKey key) {
  LockGuard guard(mutex);
  put_back_locked(entries, count, key);
}

void Heap::put_back_locked(const CacheEntry *entries, uint32_t count, StreamKey key) {
  if (count == 0) return;
  const uint64_t bit = bit_of_free(key);
  growth_.freed();
  for (uint32_t i = 0; i < count; ++i) put_back_one(entries[i], bit);
}

void Heap::end_thread(uint64_t thread) {
  LockGuard guard(mutex);
  streams_.end_thread(thread);
}

Status Heap::record_use(const CacheEntry &block, gmm_stream stream) {
  LockGuard guard(mutex);
  return uses_.record(block, StreamKey{stream, current_thread_id()});
}

Status Heap::order_after_uses(const CacheEntry &block, StreamKey key, bool *held) {
  bool other_thread = false;
  {
    LockGuard guard(mutex);
    other_thread = uses_.used_by_other_threads(block.block, key.thread);
  }
  // Only its own thread can name a per-thread stream, so only the whole device can be waited for. The heap waits
  // without its lock, as a callback may free memory.
  if (other_thread) GMM_TRY(core_.backend->synchronize(options_.device));
  LockGuard guard(mutex);
  return uses_.order_after(block, key, other_thread, held);
}

void Heap::free_held_for_importers() {
  LockGuard guard(mutex);
  uses_.free_held([&](const CacheEntry &entry, uint64_t bits) { put_back_one(entry, bits); });
}

Status Heap::forget_stream(gmm_stream stream) {
  GMM_TRY(drain_caches(false));
  LockGuard guard(mutex);
  // Nothing may name the stream again, whichever bit it had.
  const uint64_t bit = streams_.forget(stream);
  uses_.forget_stream(stream, bit);
  if (bit == 0) return Status();
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region))
    for_each_span(*region, [&](Span &span) { span.streams &= ~bit; });
  return Status();
}

uint64_t Heap::free_bytes() { return runs_.free_bytes() + slabs_.free_bytes(); }

Status Heap::reset() {
  GMM_TRY(drain_caches(true));
  caches.forget_live();
  LockGuard guard(mutex);
  uses_.clear();
  unsettled_.clear();
  for (Region *region = runs_.regions().front(); region != nullptr; region = runs_.regions().next(region)) {
    for (Span *span = region->first; span != nullptr; span = span->after) {
      if (span->live()) {
        const uint32_t blocks = span->is_slab_object ? span->block_count.load(std::memory_order_relaxed) : 1;
        for (uint32_t i = 0; i < blocks; ++i) span->slot(i).store(0, std::memory_order_relaxed);
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
  caches.drain(wait ? &per_thread : nullptr);
  if (wait) {
    LockGuard guard(mutex);
    while (!unsettled_.empty() && per_thread.push_back(unsettled_.back())) unsettled_.truncate(unsettled_.size() - 1);
  }
  if (per_thread.empty()) return Status();
  // Without a lock, as a callback in a stream may free memory.
  const Status status = core_.backend->synchronize(options_.device);
  if (!status.ok()) {
    // As freed by a stream that nobody can wait for: they are kept for the next try.
    LockGuard guard(mutex);
    for (const CacheEntry &entry : per_thread)
      if (!unsettled_.push_back(entry))
        core_.log.write(LogLevel::kError, "A free block is lost: no host memory, and the device cannot be waited for.");
    return status;
  }
  put_back(per_thread.data(), static_cast<uint32_t>(per_thread.size()), StreamKey{GMM_STREAM_PER_THREAD, 0});
  return Status();
}

Status Heap::drain_for_growth(uint64_t thread) {
  const uint32_t others = caches.drain_transfers(thread);
  {
    LockGuard guard(mutex);
    if (others != 0 && !growth_.may_drain()) return Status();
    growth_.drained(others);
  }
  return drain_caches(false);
}

uint64_t Heap::releasable() {
  LockGuard guard(mutex);
  return runs_.free().releasable();
}

HeapTotals Heap::totals() {
  HeapTotals totals = caches.totals();
  LockGuard guard(mutex);
  totals.held = own_quota_.held();
  totals.peak_held = own_quota_.peak();
  totals.paused = paused_;
  totals.extents = extent_count_;
  totals.free_bytes += free_bytes();
  return totals;
}

}  // namespace gmm
