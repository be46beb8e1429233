// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_uses.h"

namespace gmm {

// --- The table -------------------------------------------------------------------------------------------------------

// False without host memory: nothing changed.
bool BlockUses::make_lists(uint64_t count) {
  Vector<uint32_t> lists(core_.allocator);
  if (!lists.reserve(count)) return false;
  for (uint64_t i = 0; i < count; ++i) lists.push_back_reserved(kNone);
  lists_.swap(lists);
  for (uint32_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i].block == nullptr) continue;
    uint32_t &list = list_of(uses_[i].block);
    uses_[i].next = list;
    list = i;
  }
  return true;
}

bool BlockUses::add(const Use &use) {
  if (count_ == lists_.size() && !make_lists(lists_.empty() ? 16 : lists_.size() * 2)) return false;
  uint32_t place = spare_;
  if (place != kNone) {
    spare_ = uses_[place].next;
    uses_[place] = use;
  } else {
    place = static_cast<uint32_t>(uses_.size());
    if (!uses_.push_back(use)) return false;
  }
  uint32_t &list = list_of(use.block);
  uses_[place].next = list;
  list = place;
  ++count_;
  return true;
}

template <typename Fn>
void BlockUses::end_in(uint32_t *list, Fn fn) {
  for (uint32_t *link = list; *link != kNone;) {
    const uint32_t place = *link;
    Use &use = uses_[place];
    if (!fn(use)) {
      link = &use.next;
      continue;
    }
    *link = use.next;
    use.block = nullptr;
    use.next = spare_;
    spare_ = place;
    --count_;
  }
}

uint64_t BlockUses::longest_list() const {
  uint64_t longest = 0;
  for (const uint32_t first : lists_) {
    uint64_t length = 0;
    for (uint32_t i = first; i != kNone; i = uses_[i].next) ++length;
    if (longest < length) longest = length;
  }
  return longest;
}

// --- Uses ------------------------------------------------------------------------------------------------------------

Status BlockUses::record(const CacheEntry &block, StreamKey key) {
  key = plain(key);
  bool known = false;
  for_each_of(block.block, [&](const Use &use) {
    known = use.exported == 0 && use.key == key;
    return !known;
  });
  if (known) return Status();
  if (streams_.bit_of(key) == 0 || !add(Use{block.block, key, 0, kNone}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember that another stream uses the block.");
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

Status BlockUses::mark_exported(const CacheEntry &block, uint64_t *id) {
  bool known = false;
  for_each_of(block.block, [&](const Use &use) {
    known = use.exported != 0;
    if (known) *id = use.exported;
    return !known;
  });
  if (known) return Status();
  if (!add(Use{block.block, StreamKey{}, *id, kNone}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember an export.");
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

void BlockUses::export_anew(const void *block, uint64_t old_id, uint64_t id) {
  for_each_of(block, [&](Use &use) {
    if (use.exported == old_id) use.exported = id;
    return true;
  });
}

bool BlockUses::exported_as(const void *block, uint64_t id) {
  bool so = false;
  for_each_of(block, [&](const Use &use) { return !(so = use.exported == id); });
  return so;
}

bool BlockUses::is_exported(const void *block) {
  bool so = false;
  for_each_of(block, [&](const Use &use) { return !(so = use.exported != 0); });
  return so;
}

bool BlockUses::used_by_other_threads(const void *block, uint64_t thread) {
  bool so = false;
  for_each_of(block, [&](const Use &use) {
    return !(so = use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != thread);
  });
  return so;
}

bool BlockUses::has_importers(const CacheEntry &entry) const {
  const Span *span = core_.page_map.find(entry.block);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(entry.block);
  for (uintptr_t at = begin, end = begin + span->block_bytes(); at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr) return false;
    if (extent->importers.load(std::memory_order_acquire) != 0) return true;
    at = end_of(*extent);
  }
  return false;
}

Status BlockUses::order_after(const CacheEntry &block, StreamKey key, bool device_waited, bool *held) {
  uint64_t bits = 0;
  bool exported = false;
  for_each_of(block.block, [&](const Use &use) {
    exported = exported || use.exported != 0;
    if (use.exported == 0 &&
        !(device_waited && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != key.thread))
      bits |= streams_.bit_of_free(use.key, key.thread, core_.log);
    return true;
  });
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
  if (count_ != 0) end_in(&list_of(block.block), [&](const Use &use) { return use.block == block.block; });
  return Status();
}

void BlockUses::forget_stream(gmm_stream stream) {
  const StreamKey key = plain(StreamKey{stream});
  if (key.stream == GMM_STREAM_PER_THREAD) return;  // other threads have one, too
  if (count_ == 0) return;
  for (uint32_t &list : lists_) end_in(&list, [&](const Use &use) { return use.exported == 0 && use.key == key; });
}

void BlockUses::clear() {
  uses_.clear();
  lists_.clear();
  spare_ = kNone;
  count_ = 0;
  held_.clear();
}

}  // namespace gmm
