// SPDX-License-Identifier: Apache-2.0
#include "cli/views/walk.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/device_text.h"

namespace gmm {

uint64_t first_epoch(const view_input &input) {
  uint64_t first = UINT64_MAX;
  for (uint32_t i = 0; i < input.count; ++i)
    if (input.traces[i].epoch != 0) first = std::min(first, input.traces[i].epoch);
  return first == UINT64_MAX ? 0 : first;
}

const char *event_name(const trace_event &event) {
  if (event.was_live != 0) return "live";
  static constexpr const char *kNames[] = {
      nullptr, "alloc",        "free",           "use",  "pause",        "resume", "trim",  "compact",
      "reset", "heap created", "heap destroyed", "name", "thread ended", nullptr,  nullptr, nullptr,
      nullptr, nullptr,        "move",           "held", "failed"};
  const char *name = event.type < sizeof kNames / sizeof *kNames ? kNames[event.type] : nullptr;
  return name != nullptr ? name : "event";
}

const char *tag_name(const trace &of, uint32_t index) {
  return index < of.tag_count ? of.tags[index].name : "all tags";
}

const char *kind_text(uint16_t kind) {
  return kind == GMM_KIND_UNSPECIFIED || kind >= KIND_COUNT ? "" : kind_names[kind];
}

WalkGroup &group_of(const WalkBlock &block, GroupBy by, WalkGroups *groups) {
  const trace_event &place = *block.alloc;
  const bool of_place = by != GroupBy::kStack, of_stack = by != GroupBy::kPlace;
  const auto number = uint64_t{place.tag} << 32 | uint64_t{place.kind} << 16 | static_cast<uint16_t>(place.device);
  uint64_t hash = of_place ? hash_of_text(block.name, kHashStart ^ number) : kHashStart;
  if (of_stack) hash = (hash ^ place.stack) * UINT64_C(0x9e3779b97f4a7c15);
  return groups->items[groups->find_or_add(hash, WalkGroup{block}, [&](const WalkGroup &group) {
    const trace_event &of = *group.block.alloc;
    if (of_stack && of.stack != place.stack) return false;
    return !of_place || (of.tag == place.tag && of.kind == place.kind && of.device == place.device &&
                         std::strcmp(group.block.name, block.name) == 0);
  })];
}

void sort_largest_first(WalkGroups *groups) {
  std::sort(groups->items.begin(), groups->items.end(),
            [](const WalkGroup &a, const WalkGroup &b) { return a.live_bytes > b.live_bytes; });
}

void frame_text(const trace_frame &frame, FrameText &out) {
  if (frame.file[0] == '\0')
    std::snprintf(out, sizeof out, "%s", frame.name);
  else
    std::snprintf(out, sizeof out, "%s (%s:%" PRIu32 ")", frame.name, frame.file, frame.line);
  for (char *at = out; (at = std::strchr(at, '"')) != nullptr;) *at = '\'';  // of operator ""
}

Walk::Walk(const view_input &input, uint32_t index)
    : choice_(input.choice),
      trace_(input.traces[index]),
      offset_(trace_.epoch == 0 ? 0 : trace_.epoch - first_epoch(input)) {
  blocks_.grow_to(trace_.block_count);
}

bool Walk::is_chosen(const trace_event &place) const {
  if (choice_.tag != nullptr && std::strcmp(choice_.tag, tag_name(trace_, place.tag)) != 0) return false;
  return choice_.kind == GMM_KIND_UNSPECIFIED || choice_.kind == place.kind;
}

WalkBytes &Walk::bytes_of(gmm_device device, uint32_t tag) {
  for (changed_ = 0; changed_ < bytes_.size(); ++changed_)
    if (bytes_[changed_].device == device && bytes_[changed_].tag == tag) return bytes_[changed_];
  return bytes_.add(WalkBytes{device, tag});
}

// A heap that has ended holds nothing.
bool Walk::set_held(const trace_event &event) {
  const bool has_ended = event.type == TRACE_HEAP_DESTROYED;
  WalkHeap &heap = heaps_.items[heaps_.find_or_add(event.address, WalkHeap{event.address},
                                                   [&](const WalkHeap &each) { return each.number == event.address; })];
  if (heap.bytes == heaps_.kNone) {
    if (has_ended || !is_chosen(event)) return false;
    bytes_of(event.device, event.tag);
    heap.bytes = changed_;
  }
  changed_ = heap.bytes;
  const uint64_t held = has_ended ? 0 : event.size, paused = has_ended ? 0 : event.value;
  bytes_[changed_].held += held - heap.held;
  bytes_[changed_].paused += paused - heap.paused;
  heap.held = held;
  heap.paused = paused;
  return true;
}

// The state behind the event. False: the event is not chosen.
bool Walk::apply() {
  const trace_event &event = *event_;
  changed_ = UINT64_MAX;
  if (event.type == TRACE_HELD || event.type == TRACE_HEAP_DESTROYED) return set_held(event);
  if (event.type == TRACE_PAUSE || event.type == TRACE_RESUME)
    return choice_.tag == nullptr || event.tag == TRACE_NO_TAG || is_chosen(event);
  if (event.type == TRACE_FAILED) return event.kind == GMM_KIND_UNSPECIFIED || is_chosen(event);
  if (event.block == TRACE_NO_BLOCK) return true;
  WalkBlock &block = blocks_[event.block];
  if (event.type == TRACE_ALLOC) block = WalkBlock{&event};
  if (event.type == TRACE_BLOCK_NAME) block.name = trace_.names[event.value];
  block_ = block;
  if (block.alloc == nullptr) return false;
  const trace_event &alloc = *block.alloc;
  const bool chosen = is_chosen_block(alloc);
  if (event.type == TRACE_FREE) block = WalkBlock{};
  if (!chosen || event.type == TRACE_USE || event.type == TRACE_BLOCK_NAME) return chosen;
  const uint64_t change = event.type == TRACE_ALLOC ? alloc.size : uint64_t{0} - alloc.size;
  bytes_of(alloc.device, alloc.tag).live += change;
  live_ += change;
  return true;
}

bool Walk::next() {
  while (next_ < trace_.count) {
    event_ = &trace_.events[next_++];
    if (time(event_->time) > choice_.to) break;
    if (apply() && time(event_->time) >= choice_.from) return true;
  }
  return false;
}

Walk walk_to(const view_input &input, uint32_t index, uint64_t time) {
  view_input until = input;
  until.choice.to = time;
  Walk walk(until, index);
  while (walk.next()) continue;
  return walk;
}

List<WalkBlock> live_by_address(const Walk &walk) {
  List<WalkBlock> live;
  walk.for_each_live([&](const WalkBlock &block) { live.add(block); });
  std::sort(live.begin(), live.end(),
            [](const WalkBlock &a, const WalkBlock &b) { return a.alloc->address < b.alloc->address; });
  return live;
}

Peak find_peak(const view_input &input) {
  // Of several processes the peak is that of one: their memory need not be on one card.
  Peak peak = {input.choice.to, 0};
  for (uint32_t i = 0; i < input.count; ++i)
    for_each_event(input, i, [&](const Walk &walk) {
      if (walk.live() > peak.bytes) peak = {walk.time(walk.event().time), walk.live()};
    });
  return peak;
}

}  // namespace gmm
