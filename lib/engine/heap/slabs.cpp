// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/slabs.h"

namespace gmm {
namespace {

bool in_paused_region(const Span *slab) { return slab->region->paused.load(std::memory_order_relaxed) != 0; }

}  // namespace

void Slabs::list(Span *slab) {
  lists_[slab->class_index].push_front(slab);
  slab->listed = true;
}

void Slabs::unlist(Span *slab) {
  List<Span, SpanOrder>::remove(slab);
  slab->listed = false;
}

Span *Slabs::find(uint32_t class_index, uint64_t allowed) {
  // A slab that other streams freed into is passed over; far down the list it is not worth the search.
  constexpr uint32_t kSearch = 16;
  uint32_t looked = 0;
  for (Span *slab = lists_[class_index].front(); slab != nullptr && looked < kSearch;
       slab = lists_[class_index].next(slab), ++looked)
    if ((slab->streams & ~allowed) == 0) return slab;
  return nullptr;
}

Span *Slabs::make(uint32_t class_index, const Span &run) {
  SlabSpan *slab = spare_ != nullptr ? spare_ : core_.slabs.take();
  spare_ = nullptr;
  if (slab == nullptr) return nullptr;
  const uint32_t blocks = slab_blocks(class_index);
  const uint64_t size = small_class_size(class_index);
  slab->region = run.region;
  slab->heap.store(heap_, std::memory_order_relaxed);
  slab->base.store(run.begin(), std::memory_order_relaxed);
  slab->size.store(run.bytes(), std::memory_order_relaxed);
  slab->block_size.store(static_cast<uint32_t>(size), std::memory_order_relaxed);
  slab->reciprocal.store(slab_reciprocal(class_index), std::memory_order_relaxed);
  slab->block_count.store(blocks, std::memory_order_relaxed);
  slab->class_index = class_index;
  slab->slot_shift.store(0, std::memory_order_relaxed);
  slab->free_blocks = blocks == 64 ? ~uint64_t{0} : (uint64_t{1} << blocks) - 1;
  slab->streams = run.streams;
  slab->stamp = run.stamp;
  if (!slab->is_slab_object) slab->is_slab_object = true;  // the free of a stale pointer may read it now
  for (uint32_t i = 0; i < kMaxSlabBlocks; ++i) slab->slot(i).store(0, std::memory_order_relaxed);
  slab->slot_shift.store(slab_slot_shift(class_index), std::memory_order_relaxed);
  slab->state.store(SpanState::kSlab, std::memory_order_release);
  core_.page_map.set_each(slab->begin(), slab->bytes(), slab);
  ++slab->region->live_spans;
  tails_ += tail_of(*slab);
  list(slab);
  return slab;
}

uint32_t Slabs::take(Span *slab, uint32_t wanted, CacheEntry *out) {
  uint32_t count = 0;
  while (count < wanted && slab->free_blocks != 0) {
    const uint32_t index = static_cast<uint32_t>(std::countr_zero(slab->free_blocks));
    slab->free_blocks &= slab->free_blocks - 1;
    out[count++] = CacheEntry{reinterpret_cast<void *>(slab->block(index)), &slab->slot(index)};
  }
  if (slab->free_blocks == 0) {
    unlist(slab);
    slab->streams = 0;
  }
  return count;
}

bool Slabs::put_back(Span *slab, const void *block) {
  slab->free_blocks |= uint64_t{1} << slab->index_of(reinterpret_cast<uintptr_t>(block));
  if (static_cast<uint32_t>(std::popcount(slab->free_blocks)) == slab->block_count.load(std::memory_order_relaxed))
    return true;
  if (!slab->listed && !in_paused_region(slab)) list(slab);
  return false;
}

void Slabs::retire(Span *slab) {
  if (slab->listed) unlist(slab);
  --slab->region->live_spans;
  if (!in_paused_region(slab)) tails_ -= tail_of(*slab);
}

void Slabs::list_last(Span *slab) {
  if (slab->listed) unlist(slab);
  if (in_paused_region(slab)) return;
  lists_[slab->class_index].push_back(slab);
  slab->listed = true;
}

void Slabs::detach(Span *slab) {
  tails_ -= tail_of(*slab);
  if (slab->listed) unlist(slab);
}

void Slabs::attach(Span *slab) {
  tails_ += tail_of(*slab);
  if (slab->free_blocks != 0) list(slab);
}

uint64_t Slabs::free_bytes() {
  uint64_t bytes = tails_;
  for (auto &slabs : lists_)
    for (Span *slab = slabs.front(); slab != nullptr; slab = slabs.next(slab))
      bytes += static_cast<uint64_t>(std::popcount(slab->free_blocks)) * slab->block_bytes();
  return bytes;
}

}  // namespace gmm
