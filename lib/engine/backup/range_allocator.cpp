// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/range_allocator.h"

#include <algorithm>

#include "base/os_memory.h"

namespace gmm {

bool reserve_tier_addresses(uint64_t unit, char **base, uint64_t *size) {
  constexpr uint64_t kMax = uint64_t{8} << 40;
  MessageGuard message_guard;
  os::MemoryInfo info;
  if (!os::memory_info(&info).ok()) return false;
  *size = std::min((info.total + unit - 1) / unit * unit, kMax);
  void *reserved = nullptr;
  if (!os::reserve(*size, os::kHugePage, &reserved).ok()) return false;
  *base = static_cast<char *>(reserved);
  return true;
}

uint64_t RangeAllocator::first_behind(uint64_t offset) const {
  const Range *behind = std::upper_bound(free_ranges_.begin(), free_ranges_.end(), offset,
                                         [](uint64_t at, const Range &range) { return at < range.offset; });
  return static_cast<uint64_t>(behind - free_ranges_.begin());
}

// Takes bytes out of one free range. The caller has reserved a place for the second range that may remain.
bool RangeAllocator::cut(uint64_t index, uint64_t offset, uint64_t size) {
  Range &range = free_ranges_[index];
  const Range rest{offset + size, range.end() - (offset + size)};
  range.size = offset - range.offset;
  free_bytes_ -= size;
  if (range.size == 0) {
    if (rest.size != 0)
      range = rest;
    else
      free_ranges_.erase(index);
    return true;
  }
  return rest.size == 0 || free_ranges_.insert(index + 1, rest);
}

// Adds bytes to the free ranges. The list has a place for the range that they may make.
void RangeAllocator::join(uint64_t offset, uint64_t size) {
  free_bytes_ += size;
  const uint64_t next = first_behind(offset);
  const bool touches_previous = next != 0 && free_ranges_[next - 1].end() == offset;
  const bool touches_next = next != free_ranges_.size() && free_ranges_[next].offset == offset + size;
  if (touches_previous && touches_next) {
    free_ranges_[next - 1].size += size + free_ranges_[next].size;
    free_ranges_.erase(next);
  } else if (touches_previous) {
    free_ranges_[next - 1].size += size;
  } else if (touches_next) {
    free_ranges_[next].offset = offset;
    free_ranges_[next].size += size;
  } else {
    (void)free_ranges_.insert(next, Range{offset, size});  // its place was reserved
  }
}

bool RangeAllocator::add(uint64_t offset, uint64_t size) {
  if (!free_ranges_.reserve(free_ranges_.size() + allocated_ranges_ + 1)) return false;
  join(offset, size);
  return true;
}

bool RangeAllocator::remove(uint64_t offset, uint64_t size) {
  if (!free_ranges_.reserve(free_ranges_.size() + allocated_ranges_ + 1)) return false;
  return cut(first_behind(offset) - 1, offset, size);
}

bool RangeAllocator::allocate(uint64_t size, uint64_t hint, uint64_t *offset) {
  if (!free_ranges_.reserve(free_ranges_.size() + allocated_ranges_ + 2)) return false;
  uint64_t index = free_ranges_.size();
  if (const uint64_t next = first_behind(hint); next != 0 && free_ranges_[next - 1].end() >= hint + size) {
    index = next - 1;
    *offset = hint;
  } else {
    for (uint64_t i = 0; i < free_ranges_.size(); ++i) {
      if (free_ranges_[i].size < size) continue;
      index = i;
      *offset = free_ranges_[i].offset;
      break;
    }
  }
  if (index == free_ranges_.size() || !cut(index, *offset, size)) return false;
  ++allocated_ranges_;
  allocated_bytes_ += size;
  return true;
}

void RangeAllocator::free(uint64_t offset, uint64_t size) {
  --allocated_ranges_;
  allocated_bytes_ -= size;
  join(offset, size);
}

bool RangeAllocator::is_free(uint64_t offset, uint64_t size) const {
  const uint64_t next = first_behind(offset);
  return next != 0 && free_ranges_[next - 1].end() >= offset + size;
}

void RangeAllocator::clear() {
  free_ranges_.clear();
  allocated_ranges_ = free_bytes_ = allocated_bytes_ = 0;
}

}  // namespace gmm
