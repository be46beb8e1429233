// SPDX-License-Identifier: Apache-2.0
// The events of a trace in their order, each with the state that it finds: its block, and what each tag holds.
#ifndef GMM_CLI_VIEWS_WALK_H
#define GMM_CLI_VIEWS_WALK_H

#include <cstdio>

#include "cli/list.h"

extern "C" {
#include "cli/views/views.h"
}

namespace gmm {

// A block while it lives.
struct WalkBlock {
  const trace_event *alloc = nullptr;
  const char *name = "";
};

// The bytes of a tag on a device.
struct WalkBytes {
  gmm_device device = 0;
  uint32_t tag = 0;   // index into trace.tags
  uint64_t live = 0;  // requested bytes of chosen blocks
  uint64_t held = 0, paused = 0;
};

// The blocks of one device, tag, kind and name, of one stack, or both.
struct WalkGroup {
  WalkBlock block;  // one of them
  uint64_t allocated = 0, allocated_bytes = 0, live = 0, live_bytes = 0;

  void add_live(uint64_t blocks, uint64_t bytes) {
    live += blocks;
    live_bytes += bytes;
  }
};
using WalkGroups = Distinct<WalkGroup>;
enum class GroupBy { kPlace, kStack, kBoth };
WalkGroup &group_of(const WalkBlock &block, GroupBy by, WalkGroups *groups);
void sort_largest_first(WalkGroups *groups);  // no group is found any more

// A heap's last TRACE_HELD.
struct WalkHeap {
  uint64_t number = 0, held = 0, paused = 0;
  uint64_t bytes = UINT64_MAX;  // index into the walk's bytes; UINT64_MAX: none so far
};

class Walk {
 public:
  // The traces of `input` outlive the walk.
  Walk(const view_input &input, uint32_t index);

  // Goes to the next chosen event. False: the end.
  bool next();
  const trace &of() const { return trace_; }
  const trace_event &event() const { return *event_; }
  // Of the event; none: the event is of no block.
  const WalkBlock *block() const { return event_->block == TRACE_NO_BLOCK ? nullptr : &block_; }
  // Nanoseconds on the clock of all traces.
  uint64_t time(uint64_t of_trace) const { return of_trace + offset_; }
  // The bytes that the event changed, behind it; null: none.
  const WalkBytes *changed() const { return changed_ == UINT64_MAX ? nullptr : &bytes_[changed_]; }
  const List<WalkBytes> &bytes() const { return bytes_; }
  // Behind the last event that next() went to: fn(const WalkBlock &) for each chosen block that lives.
  template <typename Fn>
  void for_each_live(Fn fn) const {
    for (uint64_t i = 0; i < trace_.block_count; ++i)
      if (blocks_[i].alloc != nullptr && is_chosen_block(*blocks_[i].alloc)) fn(blocks_[i]);
  }
  uint64_t live() const { return live_; }

 private:
  bool is_chosen(const trace_event &place) const;
  bool is_chosen_block(const trace_event &alloc) const {
    return is_chosen(alloc) && alloc.size >= choice_.least && alloc.size <= choice_.most;
  }
  bool set_held(const trace_event &event);
  bool apply();
  WalkBytes &bytes_of(gmm_device device, uint32_t tag);

  const view_choice choice_;
  const trace &trace_;
  uint64_t offset_ = 0, next_ = 0, changed_ = UINT64_MAX, live_ = 0;
  const trace_event *event_ = nullptr;
  WalkBlock block_;
  List<WalkBlock> blocks_;
  List<WalkBytes> bytes_;
  Distinct<WalkHeap> heaps_;
};

// Calls fn(const Walk &) behind each chosen event of a trace.
template <typename Fn>
void for_each_event(const view_input &input, uint32_t index, Fn fn) {
  Walk walk(input, index);
  while (walk.next()) fn(walk);
}

// A walk behind its last event until this time.
Walk walk_to(const view_input &input, uint32_t index, uint64_t time);
// The chosen blocks that live behind the walk's last event.
List<WalkBlock> live_by_address(const Walk &walk);
// Whether it took a time: a pause, resume, trim, compaction or move.
inline bool is_operation(const trace_event &event) {
  return (event.type >= TRACE_PAUSE && event.type <= TRACE_COMPACT) || event.type == TRACE_MOVE;
}
// "alloc", "live", "free", ... ; "event" for types that this release does not know.
const char *event_name(const trace_event &event);
const char *tag_name(const trace &of, uint32_t index);
// "DEVICE", ...; "" of memory without a kind.
const char *kind_text(uint16_t kind);
// Of a pause or resume; "" of others.
inline const char *operation_tag(const trace &of, const trace_event &event) {
  return event.type == TRACE_PAUSE || event.type == TRACE_RESUME ? tag_name(of, event.tag) : "";
}
// fn(const trace_frame &) for each call of a stack, the innermost first.
template <typename Fn>
void for_each_frame(const trace &of, uint32_t stack, Fn fn) {
  for (uint32_t i = 0; i < of.stacks[stack].count; ++i)
    for (uint32_t at = of.stack_frames[of.stacks[stack].first + i]; at != TRACE_NO_FRAME; at = of.frames[at].outer)
      fn(of.frames[at]);
}
// "NAME (FILE:LINE)", or the name alone; without quotation marks.
using FrameText = char[sizeof trace_frame::name + sizeof trace_frame::file + 16];
void frame_text(const trace_frame &frame, FrameText &out);
// The moment of the most live bytes of all traces together, on their clock.
struct Peak {
  uint64_t time, bytes;
};
Peak find_peak(const view_input &input);
// The start of the first trace, nanoseconds since 1970.
uint64_t first_epoch(const view_input &input);

}  // namespace gmm
#endif
