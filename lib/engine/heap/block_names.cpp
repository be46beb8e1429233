// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_names.h"

#include <cstring>

#include "engine/space/span.h"

namespace gmm {

namespace {

uint64_t hash_of(const void *block) { return reinterpret_cast<uintptr_t>(block); }

}  // namespace

const uint32_t *BlockNames::index_of(const void *block) const {
  return indices_.find(hash_of(block), [&](uint32_t index) { return names_[index].block == block; });
}

Status BlockNames::set(const CacheEntry &block, const char *name) {
  if (name == nullptr) {
    forget(block.block);  // the mark stays, and costs the free a look
    return Status();
  }
  if (!names_.reserve(names_.size() + 1) || !indices_.reserve())
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_name(%p): the host has no memory for the name; free memory.",
                block.block);
  const uint32_t *known = index_of(block.block);
  const uint32_t index = known != nullptr ? *known : static_cast<uint32_t>(names_.size());
  if (known == nullptr) {
    names_.push_back_reserved(Name{block.block, {}});
    indices_.add(hash_of(block.block), index);
  }
  // The rest of the bytes become zero.
  std::strncpy(names_[index].text, name, kSize - 1);
  block.slot->fetch_or(kUsedElsewhere, std::memory_order_relaxed);
  return Status();
}

void BlockNames::forget(const void *block) {
  const uint32_t *known = index_of(block);
  if (known == nullptr) return;
  const uint32_t index = *known, last = static_cast<uint32_t>(names_.size() - 1);
  indices_.remove(hash_of(block), [index](uint32_t each) { return each == index; });
  // The last name moves to the index that is free now.
  if (index != last) {
    indices_.remove(hash_of(names_[last].block), [last](uint32_t each) { return each == last; });
    indices_.add(hash_of(names_[last].block), index);
  }
  names_.erase_unordered(index);
}

void BlockNames::clear() {
  names_.clear();
  indices_.clear();
}

const char *BlockNames::of(const void *block) const {
  const uint32_t *index = index_of(block);
  return index == nullptr ? "" : names_[*index].text;
}

}  // namespace gmm
