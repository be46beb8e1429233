// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/shortage.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "engine/heap/block.h"

namespace gmm {

void Shortage::add_stacks(Heap &heap, Vector<StackHolder> *by_stack) const {
  if (!heap.mutex.lock_unless_operation()) return;
  const UnlockAtEnd guard(heap.mutex);
  heap.notes().all().for_each([&](const BlockNotes::Note &note) {
    Block block;
    if (note.stack == 0 || !find_block(heap.core(), note.block, &block) || (block.paused && block.elastic == nullptr))
      return;
    while (by_stack->size() <= note.stack)
      if (!by_stack->push_back(StackHolder{static_cast<uint32_t>(by_stack->size()), 0, 0})) return;
    StackHolder &holder = (*by_stack)[note.stack];
    holder.bytes += block.elastic == nullptr ? block.requested : block.elastic->active.load(std::memory_order_relaxed);
    ++holder.blocks;
  });
}

Shortage::Shortage(HeapSet &heaps, TagTable &tags, Heap &heap)
    : device_(heap.options().device), table_(heap.core().stacks) {
  Vector<StackHolder> by_stack(heap.core().allocator);
  tags.for_each([&](const Tag &tag) {
    Holder holder{&tag, tag.held_on[device_.ordinal].held()};
    for (Holder &place : holders_)
      if (holder.held > place.held) std::swap(place, holder);
  });
  const auto add = [&](Heap &each) -> Status {
    const HeapOptions &options = each.options();
    if (!(options.device == device_)) return Status();
    const HeapTotals totals = each.totals();
    const uint64_t largest = each.largest_free();
    if (largest != 0) ++heaps_;
    largest_ = std::max(largest_, largest);
    free_ += totals.free_bytes;
    add_stacks(each, &by_stack);
    for (Holder &holder : holders_) {
      if (holder.tag == nullptr || holder.tag->number != options.tag) continue;
      holder.live += totals.live_bytes;
      if (options.kind == Kind::kVmm) holder.active += totals.held;
    }
    return Status();
  };
  heaps.for_each(add, false).ignore();  // it never fails
  for (StackHolder holder : by_stack)
    for (StackHolder &place : stacks_)
      if (holder.bytes > place.bytes) std::swap(place, holder);
  for (const Holder &holder : holders_)
    if (holder.active > (best_ == nullptr ? 0 : best_->active)) best_ = &holder;
}

Status Shortage::explain(Status status, const char *what, uint64_t size) const {
  char text[640];
  int used = std::snprintf(text, sizeof text, "Device %d, largest holders:", device_.ordinal);
  const auto add = [&](const char *format, auto... values) {
    if (used > 0 && static_cast<size_t>(used) < sizeof text)
      used += std::snprintf(text + used, sizeof text - static_cast<size_t>(used), format, values...);
  };
  for (uint32_t i = 0; i < kInMessage && holders_[i].held != 0; ++i)
    add("%s tag \"%s\" %" PRIu64 " bytes", i == 0 ? "" : ",", holders_[i].tag->name, holders_[i].held);
  add("%s", holders_[0].held == 0 ? " none." : ".");
  if (stacks_[0].stack != 0)
    add(" %" PRIu64 " bytes come from one stack,%s.", stacks_[0].bytes, StackText(table_, stacks_[0].stack, 3).text);
  if (largest_ != 0)
    add(" Free between live blocks: %" PRIu64 " bytes, at most %" PRIu64 " in one piece.", free_, largest_);
  if (best_ != nullptr) add(" A pause of \"%s\" gives %" PRIu64 " bytes.", best_->tag->name, best_->active);
  return prefix(status, "%s of %" PRIu64 " bytes failed. %s ", what, size, text);
}

void Shortage::report(const Log &log, Backend &backend, const char *what, uint64_t size, uint64_t held) const {
  MessageGuard message_guard;
  gmm_device_info info = {};
  const bool is_told = backend.device_info(device_, &info).ok();
  log.write(LogLevel::kWarning,
            "%s of %" PRIu64 " bytes failed on device %d. This context holds %" PRIu64 " bytes there.", what, size,
            device_.ordinal, held);
  if (is_told) {
    const uint64_t used = info.total_memory - std::min(info.free_memory, info.total_memory);
    log.write(LogLevel::kWarning,
              "  The device has %" PRIu64 " bytes, %" PRIu64 " free; %" PRIu64
              " are of others: other processes, the driver, "
              "other allocators.",
              info.total_memory, info.free_memory, used - std::min(used, held));
  }
  for (const Holder &holder : holders_) {
    if (holder.held == 0) break;
    log.write(LogLevel::kWarning,
              "  tag \"%s\" holds %" PRIu64 " bytes, %" PRIu64 " of them in live blocks; a pause gives %" PRIu64 ".",
              holder.tag->name, holder.held, std::min(holder.live, holder.held), holder.active);
  }
  for (const StackHolder &holder : stacks_)
    if (holder.stack != 0)
      log.write(LogLevel::kWarning, "  %" PRIu64 " bytes in %" PRIu64 " live blocks were allocated%s.", holder.bytes,
                holder.blocks, StackText(table_, holder.stack).text);
  if (largest_ != 0)
    log.write(LogLevel::kWarning,
              "  %" PRIu64 " bytes are free between live blocks in %" PRIu64 " heaps, at most %" PRIu64
              " in one piece; gmm_compact() with GMM_COMPACT_LIVE gives back what it can empty.",
              free_, heaps_, largest_);
}

}  // namespace gmm
