// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_notes.h"

#include <cstring>

namespace gmm {
namespace {

uint64_t hash_of(const void *block) { return reinterpret_cast<uintptr_t>(block); }

// Whether a note or use is the block's.
auto is_of(const void *block) {
  return [block](const auto &note) { return note.block == block; };
}

}  // namespace

// --- Names and stacks ------------------------------------------------------------------------------------------------

BlockNotes::Note *BlockNotes::note_of(const CacheEntry &block) {
  const uint64_t hash = hash_of(block.block);
  Note *known = notes_.find(hash, is_of(block.block));
  if (known != nullptr || !notes_.reserve()) return known;
  notes_.add(hash, Note{block.block, 0, 0, {}});
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return notes_.find(hash, is_of(block.block));
}

Status BlockNotes::set_name(const CacheEntry &block, const char *name) {
  Note *note = name == nullptr ? notes_.find(hash_of(block.block), is_of(block.block)) : note_of(block);
  if (note == nullptr && name != nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_name(%p): the host has no memory for the name; free memory.",
                block.block);
  // The rest of the bytes become zero.
  if (note != nullptr) std::strncpy(note->name, name == nullptr ? "" : name, kNameSize - 1);
  return Status();
}

void BlockNotes::set_stack(const CacheEntry &block, uint32_t stack, bool is_free) {
  Note *note = note_of(block);
  if (note == nullptr) return;
  uint32_t &place = is_free ? note->free_stack : note->stack;
  if (is_free || place == 0) place = stack;
}

BlockNotes::Note BlockNotes::of(const void *block) const {
  const Note *known = notes_.find(hash_of(block), is_of(block));
  return known == nullptr ? Note{} : *known;
}

// --- Uses ------------------------------------------------------------------------------------------------------------

template <typename Fn>
BlockNotes::Use *BlockNotes::find_use(const void *block, Fn fn) const {
  return uses_.find(hash_of(block), [&](const Use &use) { return use.block == block && fn(use); });
}

Status BlockNotes::record(const CacheEntry &block, StreamKey key) {
  key = plain(key);
  if (find_use(block.block, [&](const Use &use) { return use.exported == 0 && use.key == key; }) != nullptr)
    return Status();
  if (streams_.bit_of(key) == 0 || !uses_.reserve())
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember that another stream uses the block.");
  uses_.add(hash_of(block.block), Use{block.block, key, 0});
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

Status BlockNotes::mark_exported(const CacheEntry &block, uint64_t *id) {
  if (const Use *known = find_use(block.block, [](const Use &use) { return use.exported != 0; })) {
    *id = known->exported;
    return Status();
  }
  if (!uses_.reserve()) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to remember an export.");
  uses_.add(hash_of(block.block), Use{block.block, StreamKey{}, *id});
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

void BlockNotes::export_anew(const void *block, uint64_t old_id, uint64_t id) {
  if (Use *known = find_use(block, [&](const Use &use) { return use.exported == old_id; })) known->exported = id;
}

bool BlockNotes::exported_as(const void *block, uint64_t id) const {
  return find_use(block, [&](const Use &use) { return use.exported == id; }) != nullptr;
}

bool BlockNotes::is_exported(const void *block) const {
  return find_use(block, [](const Use &use) { return use.exported != 0; }) != nullptr;
}

bool BlockNotes::used_by_other_threads(const void *block, uint64_t thread) const {
  return find_use(block, [&](const Use &use) {
           return use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != thread;
         }) != nullptr;
}

bool BlockNotes::has_importers(const CacheEntry &entry) const {
  const Span *span = core_.page_map.find(entry.block);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(entry.block);
  const auto has_none = [](const Extent &extent) { return extent.importers.load(std::memory_order_acquire) == 0; };
  if (!span->region->elastic) return !core_.page_map.for_each_extent(begin, begin + span->block_bytes(), has_none);
  bool has_any = false;
  for_each_extent(*span->region, [&](const Extent &extent) { has_any = has_any || !has_none(extent); });
  return has_any;
}

Status BlockNotes::order_after(const CacheEntry &block, StreamKey key, bool device_waited, bool *held) {
  uint64_t bits = 0;
  // Each use is looked at, and none is the one that is sought.
  find_use(block.block, [&](const Use &use) {
    if (use.exported == 0 &&
        !(device_waited && use.key.stream == GMM_STREAM_PER_THREAD && use.key.thread != key.thread))
      bits |= streams_.bit_of_free(use.key, key.thread, core_.log);
    return false;
  });
  *held = is_exported(block.block) && has_importers(block);
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
  while (uses_.find(hash_of(block.block), is_of(block.block)) != nullptr)
    uses_.remove(hash_of(block.block), is_of(block.block));
  if (notes_.find(hash_of(block.block), is_of(block.block)) != nullptr)
    notes_.remove(hash_of(block.block), is_of(block.block));
  return Status();
}

void BlockNotes::forget_stream(gmm_stream stream) {
  const StreamKey key = plain(StreamKey{stream});
  if (key.stream == GMM_STREAM_PER_THREAD) return;  // other threads have one, too
  uses_.remove_if([&](const Use &use) { return use.exported == 0 && use.key == key; });
}

void BlockNotes::clear() {
  notes_.clear();
  uses_.clear();
  held_.clear();
}

}  // namespace gmm
