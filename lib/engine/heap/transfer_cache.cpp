// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/transfer_cache.h"

#include <cstring>

#include "engine/heap/heap.h"

namespace gmm {
namespace {

// Requests a cache line for a write that follows soon, if another processor wrote the line last. Any address is
// allowed.
void prefetch_to_write(const void *address) {
#if defined(__x86_64__)
  // Without -mprfchw, __builtin_prefetch() emits a read prefetch, after which the write asks the other processor again.
  // Processors without this instruction execute it as a NOP.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char *>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace

TransferCache::~TransferCache() { heap_.core().allocator.destroy(batches_.load(std::memory_order_relaxed)); }

TransferCache::Batches *TransferCache::make() {
  Batches *made = heap_.core().allocator.create<Batches>(), *expected = nullptr;
  if (made == nullptr ||
      batches_.compare_exchange_strong(expected, made, std::memory_order_acq_rel, std::memory_order_acquire))
    return made;
  heap_.core().allocator.destroy(made);
  return expected;
}

// A held batch to the heap; it is still held.
void TransferCache::empty(Batches &all, uint32_t index) {
  Batch &batch = all.batch[index];
  heap_.put_back(batch.entries, batch.count, batch.key);
  all.gone.fetch_add(batch.bytes(), std::memory_order_release);
}

// False: the bytes would be too many. Bytes that left after `come` was read may have come after it too. Then the
// difference is less than what is here, or negative, but the thread that brought them counted these bytes as well.
bool TransferCache::charge(Batches &all, uint64_t bytes) {
  const uint64_t come = all.come.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const auto fits = [come](uint64_t gone) { return static_cast<int64_t>(come - gone) <= int64_t{kBudget}; };
  if (fits(all.seen_gone.load(std::memory_order_relaxed))) return true;
  const uint64_t gone = all.gone.load(std::memory_order_relaxed);
  all.seen_gone.store(gone, std::memory_order_relaxed);
  if (fits(gone)) return true;
  all.come.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

// Holds an empty batch of these places, or one of other blocks, which go to the heap.
bool TransferCache::hold_room(Batches &all, uint32_t first, uint32_t count, uint64_t tag, uint32_t *index) {
  for (*index = first; *index < first + count; ++*index)
    if (all.states[*index].load(std::memory_order_relaxed) == kEmpty && hold(all, *index, kEmpty)) return true;
  for (*index = first; *index < first + count; ++*index) {
    const uint64_t state = all.states[*index].load(std::memory_order_relaxed);
    if (!is_full(state) || state == tag || !hold(all, *index, state)) continue;
    empty(all, *index);
    return true;
  }
  return false;
}

bool TransferCache::put(StreamKey key, uint64_t block_bytes, const CacheEntry *entries, uint32_t count) {
  Batches *all = batches_.load(std::memory_order_acquire);
  if (all == nullptr && (all = make()) == nullptr) return false;
  const uint64_t tag = tag_of(key, block_bytes), bytes = count * block_bytes;
  uint32_t index = 0;
  prefetch_to_write(&all->states[first_way(tag)]);
  if (bytes > kMaxBatchBytes || !hold_room(*all, first_way(tag), kWays, tag, &index)) return false;
  Batch &batch = all->batch[index];
  const bool fits = charge(*all, bytes);
  if (fits) {
    batch.count = count;
    batch.key = key;
    batch.block_bytes = block_bytes;
    std::memcpy(batch.entries, entries, count * sizeof(CacheEntry));
    batch.fills.store(batch.fills.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  all->states[index].store(fits ? tag : kEmpty, std::memory_order_release);
  if (fits) return true;
  // For the next time.
  for (index = 0; index < kBatches; ++index) {
    const uint64_t state = all->states[index].load(std::memory_order_relaxed);
    if (!is_full(state) || state == tag || !hold(*all, index, state)) continue;
    empty(*all, index);
    all->states[index].store(kEmpty, std::memory_order_release);
    break;
  }
  return false;
}

uint32_t TransferCache::take(StreamKey key, uint64_t block_bytes, CacheEntry *out) {
  Batches *all = batches_.load(std::memory_order_acquire);
  if (all == nullptr) return 0;
  const uint64_t tag = tag_of(key, block_bytes);
  const uint32_t first = first_way(tag);
  for (uint32_t index = first; index < first + kWays; ++index) {
    if (all->states[index].load(std::memory_order_relaxed) != tag || !hold(*all, index, tag)) continue;
    Batch &batch = all->batch[index];
    if (!(batch.key == key) || batch.block_bytes != block_bytes) {  // the same tag by chance
      all->states[index].store(tag, std::memory_order_release);
      continue;
    }
    const uint32_t count = batch.count;
    std::memcpy(out, batch.entries, count * sizeof(CacheEntry));
    all->gone.fetch_add(count * block_bytes, std::memory_order_release);
    all->states[index].store(kEmpty, std::memory_order_release);
    // Fetching slots ahead is what helps at 1 MiB. Larger batches alone, or prefetchw at the free itself, gained
    // nothing.
    for (uint32_t i = count; i-- > 0;) prefetch_to_write(out[i].slot);
    if (block_bytes > kMaxSmall) note_order(*all, out, count);
    return count;
  }
  return 0;
}

// The last block of a batch goes out first. Threads that do this at once spoil each other's order, and nothing else.
void TransferCache::note_order(Batches &all, const CacheEntry *entries, uint32_t count) {
  uint64_t at = all.taken.load(std::memory_order_relaxed);
  for (uint32_t i = count; i-- > 0; ++at) {
    all.order[at % kOrder].store(entries[i].slot, std::memory_order_relaxed);
    order_of(entries[i].slot).store(at + 1, std::memory_order_relaxed);
  }
  all.taken.store(at, std::memory_order_relaxed);
}

void TransferCache::fetch_after(std::atomic<uint64_t> *slot, uint32_t count) const {
  const Batches *all = batches_.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const uint64_t end = all->taken.load(std::memory_order_relaxed);
  uint64_t at = order_of(slot).load(std::memory_order_relaxed);
  if (at == 0 || at > end || end - at > kOrder / 2) return;
  for (const uint64_t last = end - at < count ? end : at + count; at != last; ++at)
    prefetch_to_write(all->order[at % kOrder].load(std::memory_order_relaxed));
}

uint64_t TransferCache::drain_idle(uint64_t now, uint64_t age) {
  Batches *all = batches_.load(std::memory_order_acquire);
  uint64_t drained = 0;
  for (uint32_t index = 0; all != nullptr && index < kBatches; ++index) {
    Batch &batch = all->batch[index];
    const uint64_t fills = batch.fills.load(std::memory_order_relaxed);
    if (age != 0 && fills != batch.seen_fills) {
      batch.seen_fills = fills;
      batch.idle_since = now;
      continue;
    }
    const uint64_t state = all->states[index].load(std::memory_order_acquire);
    if (!is_full(state) || (age != 0 && now - batch.idle_since < age) || !hold(*all, index, state)) continue;
    // When it was filled anew since it was looked at: next time.
    const bool goes = age == 0 || batch.fills.load(std::memory_order_relaxed) == fills;
    if (goes) {
      drained += batch.bytes();
      empty(*all, index);
    }
    all->states[index].store(goes ? kEmpty : state, std::memory_order_release);
  }
  return drained;
}

}  // namespace gmm
