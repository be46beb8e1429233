// SPDX-License-Identifier: Apache-2.0
// Slabs and blocks: see heap_runs.cpp for free runs, heap_grow.cpp for memory from the driver.
#include "engine/heap/heap.h"

#include <cstddef>

#include "engine/heap/heap_registry.h"
#include "engine/heap/thread_cache.h"

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
      free_(options.kind != Kind::kVmm),
      streams_(core.backend, options.device, core.allocator),
      uses_(core.allocator),
      kept_aside_(core.allocator),
      unsettled_(core.allocator),
      kept_for_graph_(options.capture != 0) {
  quotas_.each[4] = &own_quota_;
  fast.gate = core.gate;
  fast.last_uncaptured = core.last_uncaptured;
  if (core.last_uncaptured != UINTPTR_MAX) streams_.expect_captures();
}

Heap::~Heap() {
  if (fast.serial != 0) HeapRegistry::remove(this);
  end_caches(*this);
  while (spare_ != nullptr) {
    Span *span = spare_;
    spare_ = span->after;
    core_.spans.put(span);
  }
  streams_.clear();
}

Status Heap::init() { return HeapRegistry::add(this); }

Span *Heap::find_slab(uint32_t class_index, uint64_t allowed) {
  // A slab that other streams freed into is passed over; far down the list it is not worth the search.
  constexpr uint32_t kSearch = 16;
  uint32_t looked = 0;
  for (Span *slab = slabs_[class_index].front(); slab != nullptr && looked < kSearch;
       slab = slabs_[class_index].next(slab), ++looked)
    if ((slab->streams & ~allowed) == 0) return slab;
  return nullptr;
}

Status Heap::new_slab(uint32_t class_index, StreamKey key, Effort effort, Span **out) {
  Span *run = nullptr;
  *out = nullptr;
  GMM_TRY(find_run(slab_granules(class_index), kGranule, key, effort, &run));
  if (run == nullptr) return Status();
  SlabSpan *slab = core_.slabs.take();
  if (slab == nullptr) {
    free_run(run);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a slab.");
  }
  const uint32_t blocks = slab_blocks(class_index);
  const uint64_t size = small_class_size(class_index);
  slab->region = run->region;
  slab->heap.store(this, std::memory_order_relaxed);
  slab->base.store(run->begin(), std::memory_order_relaxed);
  slab->size.store(run->bytes(), std::memory_order_relaxed);
  slab->block_size.store(static_cast<uint32_t>(size), std::memory_order_relaxed);
  slab->reciprocal.store(slab_reciprocal(class_index), std::memory_order_relaxed);
  slab->block_count.store(blocks, std::memory_order_relaxed);
  slab->class_index = class_index;
  slab->slot_shift.store(0, std::memory_order_relaxed);
  slab->free_blocks = blocks == 64 ? ~uint64_t{0} : (uint64_t{1} << blocks) - 1;
  slab->streams = run->streams;
  slab->stamp = run->stamp;
  if (!slab->is_slab_object) slab->is_slab_object = true;  // the free of a stale pointer may read it meanwhile
  for (uint32_t i = 0; i < kMaxSlabBlocks; ++i) slab->slot(i).store(0, std::memory_order_relaxed);
  slab->slot_shift.store(slab_slot_shift(class_index), std::memory_order_relaxed);
  slab->state.store(SpanState::kSlab, std::memory_order_release);
  link_between(run->before, slab, run->after);
  core_.page_map.set_each(slab->begin(), slab->bytes(), slab);
  ++slab->region->live_spans;
  slab_tails_ += slab_tail(*slab);
  end_span(run);
  slabs_[class_index].push_front(slab);
  slab->listed = true;
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
    Span *slab = find_slab(class_index, streams_.own_bit(key));
    if (slab == nullptr) {
      // What there is will do; a further slab is made for a first block only.
      if (*count != 0) break;
      GMM_TRY(new_slab(class_index, key, Effort::kNoGrowth, &slab));
      if (slab == nullptr && effort == Effort::kGrow) {
        slab = slabs_[class_index].front();
        if (slab != nullptr && streams_.put_behind(key, slab->streams).ok())
          order_behind(slab, bit);
        else
          GMM_TRY(new_slab(class_index, key, effort, &slab));
      }
      if (slab == nullptr) break;
    }
    while (*count < wanted && slab->free_blocks != 0) {
      const uint32_t index = static_cast<uint32_t>(std::countr_zero(slab->free_blocks));
      slab->free_blocks &= slab->free_blocks - 1;
      out[(*count)++] = CacheEntry{reinterpret_cast<void *>(slab->block(index)), &slab->slot(index)};
    }
    if (slab->free_blocks == 0) {
      List<Span, SpanOrder>::remove(slab);
      slab->listed = false;
      slab->streams = 0;
    }
  }
  growth_.took(*count * small_class_size(class_index));
  return Status();
}

Status Heap::take_large(uint64_t size, uint64_t alignment, StreamKey key, Effort effort, const CacheEntry *back,
                        uint32_t back_count, Span **out) {
  LockGuard guard(mutex);
  *out = nullptr;
  if (back_count != 0) {
    const uint64_t bit = note_frees(key);
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
  if (slab->listed) {
    List<Span, SpanOrder>::remove(slab);
    slab->listed = false;
  }
  Span *run = new_span(SpanState::kFree, slab->begin(), slab->bytes(), slab->region);
  // Without host memory the slab stays a slab: nothing is lost, it serves its class again.
  if (run == nullptr) {
    if (slab->region->paused.load(std::memory_order_relaxed) == 0) {
      slabs_[slab->class_index].push_back(slab);
      slab->listed = true;
    }
    return slab;
  }
  run->streams = slab->streams;
  run->stamp = slab->stamp;
  link_between(slab->before, run, slab->after);
  --slab->region->live_spans;
  if (slab->region->paused.load(std::memory_order_relaxed) == 0) slab_tails_ -= slab_tail(*slab);
  end_span(slab);
  return free_run(run);
}

void Heap::put_back_large(Span *span, uint64_t bit) {
  if (fast.has_paused.load(std::memory_order_relaxed) != 0) forget_freed(*span);
  --span->region->live_spans;
  order_behind(span, bit);
  free_run(span);
}

void Heap::put_back_one(const CacheEntry &entry, uint64_t bit) {
  Span *span = core_.page_map.find(entry.block);
  if (!span->is(SpanState::kSlab)) return put_back_large(span, bit);
  span->free_blocks |= uint64_t{1} << span->index_of(reinterpret_cast<uintptr_t>(entry.block));
  order_behind(span, span->streams | bit);
  if (static_cast<uint32_t>(std::popcount(span->free_blocks)) == span->block_count.load(std::memory_order_relaxed)) {
    retire_slab(span);
  } else if (!span->listed && span->region->paused.load(std::memory_order_relaxed) == 0) {
    slabs_[span->class_index].push_front(span);
    span->listed = true;
  }
}

// The bit for memory that a stream frees now; 0 when nothing queued may use it any more.
uint64_t Heap::note_frees(StreamKey key) {
  const bool per_thread = key.stream == GMM_STREAM_PER_THREAD;
  if (per_thread && key.thread != current_thread_id()) return 0;
  const uint64_t bit = streams_.bit_of(key);
  if (bit != 0 && !per_thread) {
    streams_.note_free_on_last();
    return bit;
  }
  MessageGuard keep;
  if (bit != 0 && streams_.note_frees(key).ok()) return bit;
  // No memory to remember the stream, or no event: wait for it once.
  if (core_.backend->stream_synchronize(options_.device, key.stream).ok()) return 0;
  core_.log.write(LogLevel::kError, "Memory is free again, but the stream that freed it could not be waited for: %s",
                  last_message());
  return bit;
}

void Heap::put_back(const CacheEntry *entries, uint32_t count, StreamKey key) {
  LockGuard guard(mutex);
  put_back_locked(entries, count, key);
}

void Heap::put_back_locked(const CacheEntry *entries, uint32_t count, StreamKey key) {
  if (count == 0) return;
  const uint64_t bit = note_frees(key);
  growth_.freed();
  for (uint32_t i = 0; i < count; ++i) put_back_one(entries[i], bit);
}

void Heap::end_thread(uint64_t thread) {
  LockGuard guard(mutex);
  streams_.end_thread(thread);
}

Status Heap::record_use(const CacheEntry &block, gmm_stream stream) {
  LockGuard guard(mutex);
  const StreamKey key{stream, current_thread_id()};
  if (streams_.bit_of(key) == 0 || !uses_.push_back(Use{block.block, key, 0}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember that another stream uses the block.");
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

Status Heap::mark_exported(const CacheEntry &block, uint64_t *id) {
  for (const Use &use : uses_) {
    if (use.block != block.block || use.exported == 0) continue;
    *id = use.exported;
    return Status();
  }
  if (!uses_.push_back(Use{block.block, StreamKey{}, *id}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember an export.");
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

void Heap::export_anew(const void *block, uint64_t old_id, uint64_t id) {
  for (Use &use : uses_)
    if (use.block == block && use.exported == old_id) use.exported = id;
}

bool Heap::exported_as(const void *block, uint64_t id) const {
  for (const Use &use : uses_)
    if (use.block == block && use.exported == id) return true;
  return false;
}

bool Heap::has_importers(const CacheEntry &entry) {
  const Span *span = core_.page_map.find(entry.block);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(entry.block);
  for (uintptr_t at = begin, end = begin + span->block_bytes(); at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr) return false;
    if (extent->importers.load(std::memory_order_acquire) != 0) return true;
    at = extent->base.load(std::memory_order_relaxed) + extent->size.load(std::memory_order_relaxed);
  }
  return false;
}

Status Heap::settle_uses(const CacheEntry &block, StreamKey key, bool *kept) {
  const uint64_t thread = current_thread_id();
  bool other_thread = false;
  {
    LockGuard guard(mutex);
    for (const Use &use : uses_)
      if (use.block == block.block && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != thread)
        other_thread = true;
  }
  // Only its own thread can name a per-thread stream, so only the whole device can be waited for; without the lock, as a callback may free memory.
  if (other_thread) GMM_TRY(core_.backend->synchronize(options_.device));
  LockGuard guard(mutex);
  uint64_t bits = 0;
  bool exported = false;
  for (const Use &use : uses_) {
    if (use.block != block.block) continue;
    exported = exported || use.exported != 0;
    if (use.exported == 0 && !(other_thread && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != thread))
      bits |= note_frees(use.key);
  }
  *kept = exported && has_importers(block);
  if ((*kept || bits != 0) && !kept_aside_.reserve(kept_aside_.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to keep a block aside that others still use.");
  const Status behind = streams_.put_behind(key, bits);
  // In a graph capture nothing waits for another stream: the block keeps the marks of all.
  const bool capturing = behind.code() == GMM_ERROR_CAPTURING;
  if (!behind.ok() && !capturing) return behind;
  if (capturing) *kept = true;
  if (*kept) kept_aside_.push_back_reserved(KeptAside{block, key, note_frees(key) != 0, capturing ? bits : 0});
  for (uint64_t i = uses_.size(); i-- > 0;)
    if (uses_[i].block == block.block) uses_.erase_unordered(i);
  return Status();
}

void Heap::free_kept_aside() {
  LockGuard guard(mutex);
  for (uint64_t i = kept_aside_.size(); i-- > 0;) {
    const KeptAside kept = kept_aside_[i];
    if (has_importers(kept.entry)) continue;
    kept_aside_.erase_unordered(i);
    put_back_one(kept.entry, kept.uses | (kept.ordered ? streams_.bit_of(kept.key) : 0));  // noted when it was freed
  }
}

Status Heap::forget_stream(gmm_stream stream) {
  GMM_TRY(drain_caches(false));
  LockGuard guard(mutex);
  // Nothing may name the stream again, whichever bit it had.
  for (uint64_t i = uses_.size(); i-- > 0;)
    if (uses_[i].exported == 0 && uses_[i].key.stream == stream) uses_.erase_unordered(i);
  for (KeptAside &kept : kept_aside_)
    if (kept.key.stream == stream) kept.ordered = false;
  const uint64_t bit = streams_.forget(stream);
  if (bit == 0) return Status();
  for (KeptAside &kept : kept_aside_) kept.uses &= ~bit;
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region))
    for_each_span(*region, [&](Span &span) { span.streams &= ~bit; });
  return Status();
}

Status Heap::reset() {
  GMM_TRY(drain_caches(true));
  {
    LockGuard guard(caches_mutex);
    ended.live_bytes = 0;
    ended.forgotten = ended.allocations - ended.frees;
    for (HeapCache *cache = caches.front(); cache != nullptr; cache = caches.next(cache)) {
      cache->live_bytes.store(0, std::memory_order_relaxed);
      ended.forgotten +=
          cache->allocations.load(std::memory_order_relaxed) - cache->frees.load(std::memory_order_relaxed);
    }
  }
  LockGuard guard(mutex);
  uses_.clear();
  kept_aside_.clear();
  unsettled_.clear();
  for (Region *region = regions_.front(); region != nullptr; region = regions_.next(region)) {
    for (Span *span = region->first; span != nullptr; span = span->after) {
      if (span->live()) {
        const uint32_t blocks = span->is_slab_object ? span->block_count.load(std::memory_order_relaxed) : 1;
        for (uint32_t i = 0; i < blocks; ++i) span->slot(i).store(0, std::memory_order_relaxed);
        span->streams = 0;
        if (span->is(SpanState::kSlab)) {
          span = retire_slab(span);
        } else {
          --region->live_spans;
          span = free_run(span);
        }
      } else if (span->is(SpanState::kFree)) {
        unlist_run(span);
        span->streams = 0;  // the devices were waited for
        span = free_run(span);
      }
    }
  }
  return Status();
}

}  // namespace gmm
