// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_cache.h"

#include <cinttypes>

#include "base/slot_table.h"
#include "base/thread.h"
#include "engine/heap/block.h"
#include "engine/heap/fast_path.h"

namespace gmm {
namespace {

bool pop_any(HeapCache &cache, StreamBins &bins, uint64_t size, uint64_t requested, void **out) {
  if (size <= kMaxSmall) return pop_small(cache, bins, size, requested, out);
  for (uint32_t i = bins.large_count; i-- > 0;) {
    const LargeEntry large = bins.large[i];
    if (!fits(large.bytes, size)) continue;
    bins.large[i] = bins.large[--bins.large_count];
    give_out(cache, large.entry, large.bytes, requested);
    *out = large.entry.block;
    return true;
  }
  return false;
}

inline HeapCache *find_last_or(const Heap &heap) {
  const OwnMemo last;
  return last.serial() == heap.fast.serial ? static_cast<HeapCache *>(last.value()) : HeapCache::find(heap);
}

}  // namespace

Status cached_alloc(Heap &heap, uint64_t size, uint64_t alignment, gmm_stream stream, void **out) {
  if (alignment <= kUnit && heap.checks().red_zone() == 0 && alloc_from_cache(heap, size, stream, out)) return Status();
  return alloc_past_cache(heap, size, alignment, stream, out);
}

Status cached_free(Core &core, void *block, gmm_stream stream) {
  if (core.checks == 0 && free_into_cache(core, block, stream)) return Status();
  return free_past_cache(core, block, stream);
}

// --- Alloc, past the fast path ---------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kBatch = 32;
static_assert(kBatch <= kLargeEntries, "both are taken from the heap into one array");

Status no_cache_of_thread() {
  if (AllocationBan::is_set())
    return fail(
        GMM_ERROR_BUSY,
        "The callback of a watcher asks for memory, while an operation may wait for it; allocate before or after "
        "it.");
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of this thread.");
}

}  // namespace

// The stack of the stream and class is empty, the large block that was freed last does not fit, the alignment is larger
// than every block has, the thread used another heap or stream last, or the cache needs attention. The heap gives
// blocks outside of enter(), so that a revoker never waits for a driver call.
Status alloc_past_cache(Heap &heap, uint64_t requested, uint64_t alignment, gmm_stream stream, void **out) {
  const bool cacheable = alignment <= kGranule;
  // The class of a multiple of the alignment has aligned blocks, as slabs start at granules. Beyond a granule the heap
  // places a run of just the size.
  const uint64_t least = requested + heap.checks().red_zone();
  const uint64_t size = alignment <= kUnit || !cacheable ? least : (least + alignment - 1) & ~(alignment - 1);
  HeapCache *cache = HeapCache::find_or_make(heap);
  if (cache == nullptr) return no_cache_of_thread();
  // For blocks that go back inside enter(): the log may call gmm, which would leave the cache for this call.
  MessagesWait until_left(false);
  cache->enter();
  StreamBins *bins = cache->bins_of(stream);
  if (bins == nullptr) {
    cache->leave();
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of a stream.");
  }
  const bool passes_by = size > kMaxSmall && heap.passes_caches();
  if (cacheable && !passes_by && pop_any(*cache, *bins, size, requested, out)) return Status();
  BlockRequest request;
  request.size = size;
  request.alignment = alignment;
  request.key = bins->key;
  CacheEntry blocks[kLargeEntries];
  Bin *bin = nullptr;
  bool taken_over = false;
  if (size > kMaxSmall) {
    // None of the large blocks fits: all return to the heap, which merges them before it splits another run.
    for (StreamBins *other = cache->all; other != nullptr; other = other->next) {
      if (other == bins || other->large_count == 0) continue;
      until_left.begin();
      heap.put_back(blocks, cache->remove_large(*other, blocks), other->key);
    }
    request.back = blocks;
    request.back_count = cache->remove_large(*bins, blocks);
    if (passes_by) {
      bins->large_capacity = 0;
      heap.passed_caches();
    }
    taken_over = cacheable && cache->take_over_large(*bins, size);
    if (taken_over && request.back_count != 0) {
      until_left.begin();
      heap.put_back(blocks, request.back_count, request.key);
    }
  } else if (cacheable && (bin = cache->bin_of(*bins, small_class(size))) != nullptr) {
    taken_over = cache->take_over(*bins, *bin);
    request.wanted = bin->capacity / 2 < kBatch ? bin->capacity / 2 : kBatch;
  }
  if (taken_over && pop_any(*cache, *bins, size, requested, out)) return Status();
  const uint64_t ended_bins = cache->ended_bins;
  cache->leave();
  until_left.end();
  if (taken_over) request.back_count = 0;
  uint32_t count = 0;
  if (Status status = heap.take(request, blocks, &count); !status.ok()) return status;
  const CacheEntry taken = blocks[--count];
  taken.slot->store(requested, std::memory_order_relaxed);
  *out = taken.block;
  cache->enter();
  count_alloc(*cache, requested);
  const uint32_t cached = bin == nullptr || cache->ended_bins != ended_bins ? 0 : cache->fill(*bin, blocks, count);
  cache->leave();
  if (cached < count) heap.put_back(blocks + cached, count - cached, request.key);
  return Status();
}

Status dedicated_alloc(Heap &heap, uint64_t size, void **out, const CommTraits *comm, bool paused) {
  HeapCache *cache = HeapCache::find_or_make(heap);
  if (cache == nullptr) return no_cache_of_thread();
  BlockRequest request;
  request.size = size + (paused ? 0 : heap.checks().red_zone());
  request.dedicated = true;
  request.comm = comm;
  request.paused = paused;
  CacheEntry taken;
  uint32_t count = 0;
  if (Status status = heap.take(request, &taken, &count); !status.ok()) return status;
  taken.slot->store(paused ? size | kUsedElsewhere | kElastic : size, std::memory_order_relaxed);
  cache->enter();
  count_alloc(*cache, paused ? 0 : size);
  cache->leave();
  *out = taken.block;
  return Status();
}

// --- Past the bins, without a wait -----------------------------------------------------------------------------------

namespace {

// Inside enter(), which it leaves only when it has a block. A revoker waits for it, but for no driver call. `bins` may
// be NULL: memory that is free for every stream serves one that this thread never used.
__attribute__((noinline)) bool try_alloc_past_bin(HeapCache &cache, StreamBins *bins, uint64_t size, gmm_stream stream,
                                                  void **out) {
  Heap &heap = *cache.heap;
  const bool small = size <= kMaxSmall;
  Bin *bin = bins != nullptr && small ? &bins->bins[small_class(size)] : nullptr;
  if (bin != nullptr && bin->entries == nullptr) bin = nullptr;
  if (bin != nullptr && cache.take_over(*bins, *bin) && pop_any(cache, *bins, size, size, out)) return true;
  if (!heap.mutex.try_lock()) return false;
  BlockRequest request;
  request.size = size;
  request.key = plain(StreamKey{stream, cache.thread_id});
  CacheEntry blocks[kBatch];
  uint32_t count = 0;
  {
    const UnlockAtEnd guard(heap.mutex);
    if (bins != nullptr && !small) {
      // As in alloc_past_cache(): the heap merges what is free before it splits another run.
      while (bins->large_count != 0 && heap.put_back_now(bins->large[bins->large_count - 1].entry, bins->key))
        add(cache.cached_bytes, 0 - bins->large[--bins->large_count].bytes);
      if (cache.take_over_large(*bins, size) && pop_any(cache, *bins, size, size, out)) return true;
    }
    const bool has_room =
        bin != nullptr && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 &&
        cache.cached_bytes.load(std::memory_order_relaxed) + bin->capacity * uint64_t{bin->block_bytes} <= kCacheBudget;
    if (has_room) request.wanted = bin->capacity / 2 < kBatch ? bin->capacity / 2 : kBatch;
    if (!heap.take_free(request, blocks, &count)) return false;
    // With the lock held, so that no pause begins in between: all of them find room.
    if (count > 1) count -= cache.fill(*bin, blocks + 1, count - 1);
  }
  blocks[0].slot->store(size, std::memory_order_relaxed);
  *out = blocks[0].block;
  count_alloc(cache, size);
  cache.leave();
  return true;
}

}  // namespace

bool try_alloc(Heap &heap, uint64_t size, gmm_stream stream, void **out) {
  HeapCache *cache = find_last_or(heap);
  if (cache == nullptr) return false;
  if (cache->enter_now()) {
    StreamBins *bins = cache->known_bins_of(stream);
    if (bins != nullptr && pop_any(*cache, *bins, size, size, out)) return true;
    if (try_alloc_past_bin(*cache, bins, size, stream, out)) return true;
  }
  cache->leave();
  return false;
}

bool try_free(Core &core, void *block, gmm_stream stream) {
  BlockStart found;
  if (free_into_cache(core, block, stream)) return true;
  if (!find_start(core, block, &found) || (found.requested & kUsedElsewhere) != 0) return false;
  HeapCache *cache = find_last_or(*found.span->heap.load(std::memory_order_relaxed));
  if (cache == nullptr) return false;
  const CacheEntry entry{block, found.slot};
  const StreamKey key = plain(StreamKey{stream, cache->thread_id});
  bool freed = false;
  if (!found.span->region->dedicated && cache->enter_now()) {
    StreamBins *bins = cache->known_bins_of(key.stream);
    const bool admits = bins != nullptr && (found.span->is_slab_object || cache->admits_large(*bins));
    if (admits && cache->heap->fast.has_paused.load(std::memory_order_relaxed) == 0 &&
        push_free(*cache, *bins, found, block)) {
      cache->leave();
      return true;
    }
    if (cache->heap->mutex.try_lock()) {
      const UnlockAtEnd guard(cache->heap->mutex);
      freed = cache->heap->put_back_now(entry, key);
      if (freed && bins != nullptr && !admits) cache->heap->passed_caches();
    }
    if (freed) count_free(*cache, found.requested);
  }
  cache->leave();
  return freed;
}

// --- Free, past the fast path ----------------------------------------------------------------------------------------

namespace {

__attribute__((cold)) Status free_error(const Core &core, const void *block) {
  Block found;
  GMM_TRY(find_block(core, block, "gmm_free", &found));
  return fail(GMM_ERROR_INTERIOR_POINTER,
              "gmm_free(%p): the address lies %" PRIu64 " bytes inside a block; free the block's start, %p.", block,
              static_cast<uint64_t>(reinterpret_cast<uintptr_t>(block) - found.base),
              reinterpret_cast<void *>(found.base));
}

// Makes room in the cache for a free block, and puts it there or into the heap. The block is checked, and its slot is
// 0. is_held: for importers (Heap::order_after_uses()) or in quarantine, so the free is only counted.
void make_room_and_free(Heap &heap, const BlockStart &found, void *block, gmm_stream stream, bool is_held) {
  const bool is_elastic = (found.requested & kElastic) != 0;
  const uint64_t requested = is_elastic ? heap.taken_bytes(*found.span) : bytes_of_slot(found.requested);
  HeapCache *cache = HeapCache::find_or_make(heap);
  const StreamKey key = key_of_caller(stream);
  const CacheEntry entry{block, found.slot};
  if (cache == nullptr) {
    heap.caches().count(HeapTotals{.live_bytes = 0 - requested, .frees = 1});
    if (!is_held) heap.put_back(&entry, 1, key);
    return;
  }
  const MessagesWait until_left;  // as in alloc_past_cache()
  cache->enter();
  count_free(*cache, requested);
  bool cached = false;
  CacheEntry back[kLargeEntries];
  uint32_t back_count = 0;
  if (!is_held && heap.fast.has_paused.load(std::memory_order_relaxed) == 0 && found.bytes <= kMaxCached &&
      !found.span->region->dedicated) {
    if (cache->cached_bytes.load(std::memory_order_relaxed) + found.bytes > kCacheBudget) cache->empty();
    StreamBins *bins = cache->bins_of(stream);
    if (bins != nullptr && !found.span->is_slab_object) {
      if (!cache->admits_large(*bins)) {
        heap.passed_caches();
        bins = nullptr;
      } else if (bins->large_count == bins->large_capacity) {
        if (!cache->hand_over_large(*bins)) back_count = cache->remove_large(*bins, back);
        heap.caches().transfers.fetch_after(entry.slot, bins->large_capacity);
      }
      if (bins != nullptr) bins->large[bins->large_count++] = LargeEntry{entry, found.bytes};
      cached = bins != nullptr;
    } else if (bins != nullptr) {
      Bin *bin = cache->bin_of(*bins, found.span->class_index);
      if (bin != nullptr && bin->count == bin->capacity) cache->spill(*bins, *bin, found.bytes);
      if (bin != nullptr) bin->entries[bin->count++] = entry;
      cached = bin != nullptr;
    }
    if (cached) add(cache->cached_bytes, found.bytes);
  }
  cache->leave();
  if (back_count != 0) heap.put_back(back, back_count, key);
  if (!cached && !is_held) heap.put_back(&entry, 1, key);
}

}  // namespace

// Other streams or importers use the block, the thread used another heap or stream last, the bin is full, memory is
// paused, or the cache needs attention.
Status free_past_cache(Core &core, void *block, gmm_stream stream) {
  BlockStart found;
  if (!find_start(core, block, &found)) return free_error(core, block);
  Heap &heap = *found.span->heap.load(std::memory_order_relaxed);
  CheckedBlock checked;  // without zeros for a name that nobody reads
  checked.entry = CacheEntry{block, found.slot};
  checked.size = bytes_of_slot(found.requested);
  checked.bytes = found.bytes;
  const bool is_checked = core.checks != 0 && (found.requested & kElastic) == 0;
  if (is_checked) GMM_TRY(heap.checks().begin_free(&checked, stream));
  bool is_held = false;
  if ((found.requested & kUsedElsewhere) != 0)
    GMM_TRY(heap.order_after_uses(checked.entry, StreamKey{stream, current_thread_id()}, &is_held));
  found.slot->store(0, std::memory_order_relaxed);
  if (is_checked) is_held = heap.checks().freed(checked, stream, is_held) || is_held;
  make_room_and_free(heap, found, block, stream, is_held);
  return Status();
}

// --- Finding, making and entering a cache ----------------------------------------------------------------------------

namespace {

// Constant-initialised: no constructor runs at load.
constexpr uint32_t kMostHeaps = 16384;
constinit Registry::Place g_heap_places[kMostHeaps] = {};
constinit Registry g_heaps{g_heap_places, kMostHeaps};

RegistryKey key_of(const Heap &heap) { return RegistryKey{heap.fast.slot, heap.fast.serial}; }

void end_caches(void *table) {
  SlotTable::take(table, g_heaps, [](void *heap, void *cache) {
    static_cast<Heap *>(heap)->caches().end_of_thread(*static_cast<HeapCache *>(cache));
  });
}

}  // namespace

Status HeapCache::begin_heap(Heap *heap) {
  RegistryKey key;
  if (!g_heaps.add(heap, &key))
    return fail(GMM_ERROR_NOT_SUPPORTED, "A process can have %u heaps, and all are in use; destroy some.", kMostHeaps);
  heap->fast.slot = key.slot;
  heap->fast.serial = key.serial;
  return Status();
}

void HeapCache::end_heap(Heap *heap) { g_heaps.remove(key_of(*heap)); }

HeapCache *HeapCache::find(const Heap &heap) {
  ThreadRecord &record = own_thread_record();
  HeapCache *cache = static_cast<HeapCache *>(SlotTable::find(record, ThreadPart::kCaches, key_of(heap)));
  if (cache != nullptr) record.memo = ThreadRecord::Memo{heap.fast.serial, cache};
  return cache;
}

HeapCache *HeapCache::find_or_make(Heap &heap) {
  if (HeapCache *cache = find(heap); cache != nullptr) return cache;
  ThreadRecord *record = AllocationBan::is_set() ? nullptr : make_thread_record();
  if (record == nullptr || !SlotTable::reserve(record, ThreadPart::kCaches, key_of(heap), end_caches)) return nullptr;
  HeapCache *cache = heap.core().allocator.create<HeapCache>();
  if (cache == nullptr) return nullptr;
  cache->heap = &heap;
  cache->thread_id = record->id;
  if (!expedited_barriers()) cache->attention.store(kNeedsFence, std::memory_order_relaxed);
  heap.caches().add(cache);
  SlotTable::set(record, ThreadPart::kCaches, key_of(heap), cache);
  return cache;
}

bool HeapCache::enter_unless_revoked() {
  if (try_enter()) return true;
  if ((attention.load(std::memory_order_relaxed) & kNeedsFence) != 0) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return (attention.load(std::memory_order_acquire) & kRevoked) == 0;
}

void HeapCache::enter_after_revoker() {
  while (!enter_unless_revoked()) {
    leave();
    heap->caches().wait_for_drain();
  }
  notice_trace();
}

bool HeapCache::notice_trace() {
  if ((attention.load(std::memory_order_relaxed) & kTraceBegan) == 0) return false;
  attention.fetch_and(~kTraceBegan, std::memory_order_relaxed);
  return true;
}

// --- Bins ------------------------------------------------------------------------------------------------------------

namespace {

// A bin holds about this many bytes, and 4 to 64 blocks. The second is for blocks that go from thread to thread.
constexpr uint64_t kBinBytes = uint64_t{256} << 10, kSharedBinBytes = uint64_t{4} << 20;

uint16_t bin_capacity(uint64_t block_bytes, uint64_t bin_bytes) {
  const uint64_t count = bin_bytes / block_bytes;
  return static_cast<uint16_t>(count > TransferCache::kMaxBatch ? TransferCache::kMaxBatch : count < 4 ? 4 : count);
}

// Bytes of a bin's array.
uint64_t bin_array_bytes(uint64_t block_bytes) {
  return bin_capacity(block_bytes, kSharedBinBytes) * sizeof(CacheEntry);
}

uint32_t large_batch(uint64_t block_bytes) {
  const uint64_t count = TransferCache::kMaxBatchBytes / block_bytes;
  return static_cast<uint32_t>(count < kLargeEntries ? count : kLargeEntries);
}

// How many large blocks a stream holds where they go from thread to thread: a batch, or several small batches.
uint32_t shared_large_capacity(uint64_t block_bytes) {
  const uint32_t batch = large_batch(block_bytes);
  return batch < kLargeEntries / 2 ? kLargeEntries / 2 : batch;
}

}  // namespace

StreamBins *HeapCache::known_bins_of(gmm_stream stream) {
  if (stream == GMM_STREAM_LEGACY) stream = GMM_STREAM_DEFAULT;
  StreamBins *bins = all;
  while (bins != nullptr && bins->key.stream != stream) bins = bins->next;
  if (bins != nullptr) current.store(bins, std::memory_order_relaxed);
  return bins;
}

StreamBins *HeapCache::bins_of(gmm_stream stream) {
  if (StreamBins *known = known_bins_of(stream)) return known;
  if (stream == GMM_STREAM_LEGACY) stream = GMM_STREAM_DEFAULT;
  StreamBins *bins = heap->core().allocator.create<StreamBins>();
  if (bins == nullptr) return nullptr;
  *bins = StreamBins{};
  bins->key = StreamKey{stream, stream == GMM_STREAM_PER_THREAD ? thread_id : 0};
  bins->large_capacity = kFewLargeEntries;
  bins->next = all;
  all = bins;
  current.store(bins, std::memory_order_relaxed);
  return bins;
}

Bin *HeapCache::bin_of(StreamBins &bins, uint32_t class_index) {
  Bin &bin = bins.bins[class_index];
  if (bin.entries != nullptr) return &bin;
  const uint64_t bytes = small_class_size(class_index);
  bin.entries = static_cast<CacheEntry *>(heap->core().allocator.allocate(bin_array_bytes(bytes), 64));
  if (bin.entries == nullptr) return nullptr;
  bin.capacity = bin_capacity(bytes, kBinBytes);
  bin.block_bytes = static_cast<uint32_t>(bytes);
  return &bin;
}

template <typename Fn>
void HeapCache::end_bins_if(Fn fn) {
  const HostAllocator &allocator = heap->core().allocator;
  for (StreamBins **link = &all; *link != nullptr;) {
    StreamBins *bins = *link;
    if (!fn(*bins)) {
      link = &bins->next;
      continue;
    }
    *link = bins->next;
    if (current.load(std::memory_order_relaxed) == bins) current.store(nullptr, std::memory_order_relaxed);
    for (Bin &bin : bins->bins)
      if (bin.entries != nullptr) allocator.deallocate(bin.entries, bin_array_bytes(bin.block_bytes));
    allocator.destroy(bins);
    ++ended_bins;
  }
}

void HeapCache::free_bins() {
  end_bins_if([](const StreamBins &) { return true; });
}

bool HeapCache::admits_large(StreamBins &bins) {
  if (bins.large_capacity != 0) return true;
  if (heap->passes_caches()) return false;
  bins.large_capacity = kFewLargeEntries;
  return true;
}

uint32_t HeapCache::remove_large(StreamBins &bins, CacheEntry *out) {
  const uint32_t count = bins.large_count;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    out[i] = bins.large[i].entry;
    bytes += bins.large[i].bytes;
  }
  bins.large_count = 0;
  bins.large_capacity = kFewLargeEntries;
  add(cached_bytes, 0 - bytes);
  return count;
}

// --- Full bins from thread to thread ---------------------------------------------------------------------------------

// Whether the blocks that this thread frees are mostly those of other threads. It will want its own again; what it will
// not want should be merged.
bool HeapCache::frees_for_others() const {
  return frees.load(std::memory_order_relaxed) > allocations.load(std::memory_order_relaxed);
}

// Memory that was paused in between must not enter a cache.
bool HeapCache::may_take_over(uint64_t bytes) const {
  return heap->fast.has_paused.load(std::memory_order_relaxed) == 0 &&
         cached_bytes.load(std::memory_order_relaxed) + bytes <= kCacheBudget;
}

bool HeapCache::take_over(const StreamBins &bins, Bin &bin) {
  if (bin.count != 0 || !may_take_over(kSharedBinBytes)) return false;
  const uint32_t count = heap->caches().transfers.take(bins.key, bin.block_bytes, bin.entries);
  if (count == 0) return false;
  bin.capacity = bin_capacity(bin.block_bytes, kSharedBinBytes);
  bin.count = static_cast<uint16_t>(count);
  add(cached_bytes, count * uint64_t{bin.block_bytes});
  return true;
}

bool HeapCache::take_over_large(StreamBins &bins, uint64_t size) {
  const uint64_t bytes = granules(size) * kGranule;
  if (bins.large_count != 0 || bytes > TransferCache::kMaxBatchBytes || !may_take_over(large_batch(bytes) * bytes))
    return false;
  CacheEntry entries[kLargeEntries];
  const uint32_t count = heap->caches().transfers.take(bins.key, bytes, entries);
  if (count == 0) return false;
  for (uint32_t i = 0; i < count; ++i) bins.large[i] = LargeEntry{entries[i], bytes};
  bins.large_count = count;
  bins.large_capacity = shared_large_capacity(bytes);
  add(cached_bytes, count * bytes);
  return true;
}

uint32_t HeapCache::fill(Bin &bin, const CacheEntry *entries, uint32_t count) {
  // Memory that was paused in between must not enter the cache.
  if (heap->fast.has_paused.load(std::memory_order_relaxed) != 0) return 0;
  uint32_t filled = 0;
  uint64_t bytes = cached_bytes.load(std::memory_order_relaxed);
  for (; filled < count && bin.count < bin.capacity && bytes + bin.block_bytes <= kCacheBudget; ++filled) {
    bin.entries[bin.count++] = entries[filled];
    bytes += bin.block_bytes;
  }
  cached_bytes.store(bytes, std::memory_order_relaxed);
  return filled;
}

void HeapCache::spill(StreamBins &bins, Bin &bin, uint64_t block_bytes) {
  if (bins.key.stream != GMM_STREAM_PER_THREAD && frees_for_others()) {
    const uint16_t capacity = bin_capacity(block_bytes, kSharedBinBytes);
    if (bin.capacity < capacity) {
      bin.capacity = capacity;
      return;
    }
    if (heap->caches().transfers.put(bins.key, block_bytes, bin.entries, bin.count)) {
      add(cached_bytes, 0 - bin.count * block_bytes);
      bin.count = 0;
      return;
    }
  }
  const uint16_t count = static_cast<uint16_t>((bin.count + 1) / 2);
  // The oldest lie at the bottom: they are the coldest.
  heap->put_back(bin.entries, count, bins.key);
  for (uint32_t i = count; i < bin.count; ++i) bin.entries[i - count] = bin.entries[i];
  bin.count = static_cast<uint16_t>(bin.count - count);
  add(cached_bytes, 0 - count * block_bytes);
}

bool HeapCache::hand_over_large(StreamBins &bins) {
  const uint64_t bytes = bins.large[0].bytes;
  // Small ones, which are here for their alignment, would be taken for blocks of a class. They are too many for its
  // bin.
  if (bytes <= kMaxSmall) return false;
  if (bins.key.stream == GMM_STREAM_PER_THREAD || bytes > TransferCache::kMaxBatchBytes / 2 || !frees_for_others())
    return false;
  CacheEntry entries[kLargeEntries];
  for (uint32_t i = 0; i < bins.large_count; ++i) {
    if (bins.large[i].bytes != bytes) return false;
    entries[i] = bins.large[i].entry;
  }
  if (bins.large_capacity < shared_large_capacity(bytes)) {
    bins.large_capacity = shared_large_capacity(bytes);
    return true;
  }
  uint32_t left = bins.large_count;
  while (left != 0) {
    const uint32_t count = left < large_batch(bytes) ? left : large_batch(bytes);
    if (!heap->caches().transfers.put(bins.key, bytes, entries + left - count, count)) break;
    left -= count;
  }
  const bool any = left != bins.large_count;
  add(cached_bytes, 0 - (bins.large_count - left) * bytes);
  bins.large_count = left;
  return any;
}

// --- Emptying --------------------------------------------------------------------------------------------------------

void HeapCache::empty() { empty_except(false, nullptr); }

void HeapCache::empty_revoked(Vector<CacheEntry> *per_thread, bool end_bins) {
  wait_until_left(busy);
  empty_except(true, per_thread);
  if (end_bins)
    end_bins_if([](const StreamBins &bins) {
      uint32_t count = bins.large_count;
      for (const Bin &bin : bins.bins) count += bin.count;
      return count == 0;
    });
  attention.fetch_and(~kRevoked, std::memory_order_release);
}

void HeapCache::forget_revoked(gmm_stream stream) {
  wait_until_left(busy);
  for (StreamBins *bins = all; bins != nullptr; bins = bins->next)
    if (bins->key.stream == stream) add(cached_bytes, 0 - put_back_all(*bins));
  end_bins_if([&](const StreamBins &bins) { return bins.key.stream == stream; });
  attention.fetch_and(~kRevoked, std::memory_order_release);
}

// Every block of a stream goes to the heap. Returns the bytes of the small ones, which the caller takes off
// `cached_bytes`.
uint64_t HeapCache::put_back_all(StreamBins &bins) {
  uint64_t bytes = 0;
  if (bins.large_count != 0) {
    CacheEntry large[kLargeEntries];
    const uint32_t count = remove_large(bins, large);
    heap->put_back(large, count, bins.key);
  }
  for (Bin &bin : bins.bins) {
    if (bin.count == 0) continue;
    heap->put_back(bin.entries, bin.count, bins.key);
    bytes += bin.count * uint64_t{bin.block_bytes};
    bin.count = 0;
  }
  return bytes;
}

// keep_per_thread: what the per-thread stream freed goes to the list, as far as there is host memory, or stays. Another
// thread can't put it into the heap, as only the owner can record an event on that stream.
void HeapCache::empty_except(bool keep_per_thread, Vector<CacheEntry> *per_thread) {
  uint64_t kept = 0;
  for (StreamBins *bins = all; bins != nullptr; bins = bins->next) {
    if (!keep_per_thread || bins->key.stream != GMM_STREAM_PER_THREAD) {
      put_back_all(*bins);
      continue;
    }
    while (bins->large_count != 0 && per_thread != nullptr &&
           per_thread->push_back(bins->large[bins->large_count - 1].entry))
      --bins->large_count;
    for (uint32_t i = 0; i < bins->large_count; ++i) kept += bins->large[i].bytes;
    for (Bin &bin : bins->bins) {
      while (bin.count != 0 && per_thread != nullptr && per_thread->push_back(bin.entries[bin.count - 1])) --bin.count;
      for (uint32_t i = 0; i < bin.count; ++i) kept += heap->core().page_map.find(bin.entries[i].block)->block_bytes();
    }
  }
  cached_bytes.store(kept, std::memory_order_relaxed);
}

}  // namespace gmm
