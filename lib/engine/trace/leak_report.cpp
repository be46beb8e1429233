// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/leak_report.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "engine/heap/block.h"
#include "engine/trace/live_blocks.h"

namespace gmm {

bool LeakReport::Group::is_like(const Group &other) const {
  return size == other.size && tag == other.tag && kind == other.kind && device == other.device &&
         std::strcmp(name, other.name) == 0;
}

LeakReport::LeakReport(const HostAllocator &allocator) : groups_(allocator), indices_(allocator) {}

uint64_t LeakReport::Group::hash() const {
  return hash_of_text(name, size ^ uint64_t{tag} << 32 ^ uint64_t{static_cast<uint32_t>(kind)} << 56 ^
                                uint64_t{static_cast<uint32_t>(device)} << 60);
}

void LeakReport::sort_groups() {
  std::sort(groups_.begin(), groups_.end(), [](const Group &a, const Group &b) {
    return a.bytes() != b.bytes() ? a.bytes() > b.bytes() : a.blocks > b.blocks;
  });
}

// Their blocks stay in the sum.
void LeakReport::forget_smaller_half() {
  sort_groups();
  groups_.truncate(kMostGroups / 2);
  indices_.clear();
  for (uint32_t i = 0; i < groups_.size(); ++i) indices_.add(groups_[i].hash(), i);
}

void LeakReport::add(const Group &block) {
  ++blocks_;
  bytes_ += block.size;
  const uint64_t hash = block.hash();
  if (const uint32_t *known = indices_.find(hash, [&](uint32_t i) { return groups_[i].is_like(block); })) {
    ++groups_[*known].blocks;
    return;
  }
  // Without host memory the block is only counted.
  if (!groups_.reserve(groups_.size() + 1) || !indices_.reserve()) return;
  indices_.add(hash, static_cast<uint32_t>(groups_.size()));
  groups_.push_back_reserved(block);
  if (groups_.size() == kMostGroups) forget_smaller_half();
}

void LeakReport::add(Heap &heap, const Tag &tag) {
  const HeapOptions &options = heap.options();
  Group one = {};
  one.blocks = 1;
  one.tag = options.tag;
  one.kind = options.kind;
  one.device = options.device.ordinal;
  std::strcpy(one.tag_name, tag.name);
  LockGuard guard(heap.mutex);
  heap.for_each_region([&](Region &region) {
    for_each_span(region, [&](Span &span) {
      for_each_live_block(span, [&](const void *block, uint64_t size) {
        one.size = size;
        std::strcpy(one.name, heap.name_of(block));
        add(one);
      });
    });
  });
}

void LeakReport::write(const Log &log) {
  if (blocks_ == 0) return;
  sort_groups();
  for (uint32_t i = 0; i < groups_.size() && i < kMostLines; ++i) {
    const Group &group = groups_[i];
    const bool is_named = group.name[0] != '\0';
    log.write(LogLevel::kWarning, "Leak: %" PRIu64 " x %" PRIu64 " bytes of %s memory on device %d, tag \"%s\"%s%s%s.",
              group.blocks, group.size, kind_name(group.kind), group.device, group.tag_name,
              is_named ? ", name \"" : "", group.name, is_named ? "\"" : "");
  }
  log.write(LogLevel::kWarning,
            "Leaks: the context ends, and %" PRIu64 " blocks of %" PRIu64
            " bytes in all are live; free them before, or set GMM_CONTEXT_NO_LEAK_REPORT.",
            blocks_, bytes_);
}

}  // namespace gmm
