// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_uses.h"

namespace gmm {

Status BlockUses::record(const CacheEntry &block, StreamKey key) {
  if (streams_.bit_of(key) == 0 || !uses_.push_back(Use{block.block, key, 0}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember that another stream uses the block.");
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

Status BlockUses::mark_exported(const CacheEntry &block, uint64_t *id) {
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

void BlockUses::export_anew(const void *block, uint64_t old_id, uint64_t id) {
  for (Use &use : uses_)
    if (use.block == block && use.exported == old_id) use.exported = id;
}

bool BlockUses::exported_as(const void *block, uint64_t id) const {
  for (const Use &use : uses_)
    if (use.block == block && use.exported == id) return true;
  return false;
}

bool BlockUses::used_by_other_threads(const void *block, uint64_t thread) const {
  for (const Use &use : uses_)
    if (use.block == block && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != thread) return true;
  return false;
}

bool BlockUses::has_importers(const CacheEntry &entry) const {
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

Status BlockUses::order_after(const CacheEntry &block, StreamKey key, bool device_waited, bool *held) {
  uint64_t bits = 0;
  bool exported = false;
  for (const Use &use : uses_) {
    if (use.block != block.block) continue;
    exported = exported || use.exported != 0;
    if (use.exported == 0 &&
        !(device_waited && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != key.thread))
      bits |= streams_.bit_of_free(use.key, key.thread, core_.log);
  }
  *held = exported && has_importers(block);
  if ((*held || bits != 0) && !held_.reserve(held_.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to hold a block that others still use.");
  const Status behind = streams_.put_behind(key, bits);
  // In a graph capture nothing waits for another stream, and no stream for one that was destroyed: the block has the
  // bits of all.
  const bool unordered = behind.code() == GMM_ERROR_CAPTURING || behind.code() == GMM_ERROR_INVALID_HANDLE;
  if (!behind.ok() && !unordered) return behind;
  if (unordered) *held = true;
  if (*held)
    held_.push_back_reserved(
        Held{block, streams_.bit_of_free(key, key.thread, core_.log) | (unordered ? bits : uint64_t{0})});
  for (uint64_t i = uses_.size(); i-- > 0;)
    if (uses_[i].block == block.block) uses_.erase_unordered(i);
  return Status();
}

void BlockUses::forget_stream(gmm_stream stream) {
  if (stream == GMM_STREAM_PER_THREAD) return;  // other threads have one, too
  for (uint64_t i = uses_.size(); i-- > 0;)
    if (uses_[i].exported == 0 && uses_[i].key.stream == stream) uses_.erase_unordered(i);
}

void BlockUses::clear() {
  uses_.clear();
  held_.clear();
}

}  // namespace gmm
