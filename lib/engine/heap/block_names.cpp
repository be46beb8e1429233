// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_names.h"

#include <cstring>

#include "engine/space/span.h"

namespace gmm {

uint64_t BlockNames::home_of(const void *block) const {
  return (reinterpret_cast<uintptr_t>(block) * 0x9e3779b97f4a7c15u >> 32) & (places_.size() - 1);
}

uint64_t BlockNames::place_of(const void *block) const {
  uint64_t at = home_of(block);
  while (places_[at] != kEmpty && names_[places_[at]].block != block) at = (at + 1) & (places_.size() - 1);
  return at;
}

// Makes room for one more. False: there is no host memory, and nothing changed.
bool BlockNames::reserve() {
  if (!names_.reserve(names_.size() + 1)) return false;
  if ((names_.size() + 1) * 2 <= places_.size()) return true;
  const uint64_t size = places_.empty() ? 16 : places_.size() * 2;
  Vector<uint32_t> grown(allocator_);
  if (!grown.reserve(size)) return false;
  for (uint64_t i = 0; i < size; ++i) grown.push_back_reserved(kEmpty);
  grown.swap(places_);
  for (uint32_t i = 0; i < names_.size(); ++i) places_[place_of(names_[i].block)] = i;
  return true;
}

Status BlockNames::set(const CacheEntry &block, const char *name) {
  if (name == nullptr) {
    forget(block.block);  // the mark stays, and costs the free a look
    return Status();
  }
  if (!reserve())
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_name(%p): the host has no memory for the name; free memory.",
                block.block);
  uint32_t &place = places_[place_of(block.block)];
  if (place == kEmpty) {
    place = static_cast<uint32_t>(names_.size());
    names_.push_back_reserved(Name{block.block, {}});
  }
  // The rest of the bytes become zero.
  std::strncpy(names_[place].text, name, kSize - 1);
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

void BlockNames::forget(const void *block) {
  if (names_.empty()) return;
  uint64_t gap = place_of(block);
  const uint32_t index = places_[gap];
  if (index == kEmpty) return;
  // Places behind the gap move up where a search would stop at it otherwise.
  const uint64_t mask = places_.size() - 1;
  for (uint64_t i = (gap + 1) & mask; places_[i] != kEmpty; i = (i + 1) & mask) {
    const uint64_t home = home_of(names_[places_[i]].block);
    if (((i - home) & mask) < ((i - gap) & mask)) continue;
    places_[gap] = places_[i];
    gap = i;
  }
  places_[gap] = kEmpty;
  // The last name moves to the index that is free now.
  const uint32_t last = static_cast<uint32_t>(names_.size() - 1);
  if (index != last) places_[place_of(names_[last].block)] = index;
  names_.erase_unordered(index);
}

void BlockNames::clear() {
  names_.clear();
  for (uint32_t &place : places_) place = kEmpty;
}

const char *BlockNames::of(const void *block) const {
  if (names_.empty()) return "";
  const uint32_t index = places_[place_of(block)];
  return index == kEmpty ? "" : names_[index].text;
}

}  // namespace gmm
