// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block.h"

#include <cinttypes>
#include <cstdio>

namespace gmm {

Status find_locked(const Core &core, const void *address, const char *operation, Block *out, HeapLock *lock) {
  for (;;) {
    GMM_TRY(find_block(core, address, operation, out));
    Heap *heap = out->heap;
    heap->mutex.lock();
    const Status status = find_block(core, address, operation, out);
    if (status.ok() && out->heap == heap) {
      lock->heap_ = heap;
      return status;
    }
    heap->mutex.unlock();  // another thread freed the block, and the address may be another heap's
    GMM_TRY(status);
  }
}

bool find_block(const Core &core, const void *address, Block *out) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const auto covers = [at](const Span *each) {
    return each != nullptr && each->live() && at - each->begin() < each->bytes();
  };
  Span *span = core.page_map.find(address);
  if (!covers(span) && !covers(span = core.page_map.find_sparse(at))) return false;
  const uint32_t index = span->index_of(at);
  if (index >= span->blocks()) return false;  // the tail of a slab
  std::atomic<uint64_t> &slot = span->slot(index);
  const uint64_t word = slot.load(std::memory_order_relaxed), requested = bytes_of_slot(word);
  if (requested == 0) return false;
  out->span = span;
  out->heap = span->heap.load(std::memory_order_relaxed);
  out->slot = &slot;
  out->base = span->block(index);
  out->requested = requested;
  out->reserved = span->block_bytes();
  out->extent = core.page_map.find_extent(out->base);
  out->elastic = (word & kElastic) != 0 ? span->region : nullptr;
  if ((out->extent == nullptr && out->elastic == nullptr) || out->heap == nullptr) return false;
  out->paused = out->partly = false;
  if (out->elastic != nullptr) {
    const uint64_t active_bytes = out->elastic->active.load(std::memory_order_relaxed);
    out->paused = active_bytes != out->reserved;
    out->partly = out->paused && active_bytes != 0;
    return true;
  }
  // The counter spares the walk while nothing of the heap is paused.
  if (out->heap->fast.has_paused.load(std::memory_order_acquire) == 0) return true;
  bool active = false;
  core.page_map.for_each_extent(out->base, out->base + out->reserved, [&](const Extent &extent) {
    (is_paused(extent) ? out->paused : active) = true;
    return true;
  });
  out->partly = out->paused && active;
  return true;
}

Status find_block(const Core &core, const void *address, const char *operation, Block *out) {
  if (find_block(core, address, out)) return Status();
  const bool is_sparse = core.page_map.find_sparse(reinterpret_cast<uintptr_t>(address)) != nullptr;
  if (is_sparse || core.page_map.find_extent(address) != nullptr)
    return fail(GMM_ERROR_ALREADY_FREED,
                "%s(%p): the address lies in memory of gmm, but in no live block; it was freed before.", operation,
                address);
  return fail(GMM_ERROR_UNKNOWN_POINTER,
              "%s(%p): this context did not allocate the address; pass memory from gmm_alloc().", operation, address);
}

Status paused_block(const Block &block, const void *address, const char *operation) {
  const Core &core = block.heap->core();
  uint64_t by = 0;  // of the first part that somebody paused
  core.page_map.for_each_extent(block.base, block.base + block.reserved, [&](const Extent &extent) {
    if (is_paused(extent)) by = extent.paused_by.load(std::memory_order_relaxed);
    return by == 0;
  });
  char pauser[32] = "";
  if (by != 0) std::snprintf(pauser, sizeof pauser, " by thread %" PRIu32, static_cast<uint32_t>(by));
  return fail(GMM_ERROR_PAUSED,
              "%s(%p): %s the block %p of %" PRIu64 " bytes is paused%s%s; resume its tag \"%s\" first.", operation,
              address, block.partly ? "a part of" : "all of", reinterpret_cast<void *>(block.base), block.requested,
              pauser, StackText(core.stacks, static_cast<uint32_t>(by >> 32)).text, block.heap->options().tag_name);
}

Status check_range(const Block &block, const void *address, const char *operation, uint64_t *size) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(address) - block.base;
  // Bytes that rounding added belong to the block, but nobody asked for them.
  if (offset > block.requested || *size > block.requested - offset)
    return fail(GMM_ERROR_INVALID_SIZE,
                "%s(%p): %" PRIu64 " bytes reach past the block, which ends after %" PRIu64 " more.", operation,
                address, *size, offset > block.requested ? 0 : block.requested - offset);
  if (*size == 0) *size = block.requested - offset;
  return Status();
}

}  // namespace gmm
