// SPDX-License-Identifier: Apache-2.0
// The events of a trace in their order, each with the state that it finds: its block, and what each tag holds.
#ifndef GMM_CLI_VIEWS_WALK_H
#define GMM_CLI_VIEWS_WALK_H

#include <cstdio>

#include "base/hash_table.h"

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

// Items of a view, each once, in the order of their first use.
template <typename T>
class Distinct {
 public:
  // The item for which `same` is true, or a new one. The reference holds until the next call.
  template <typename Same>
  T &find_or_add(uint64_t hash, const T &item, Same same) {
    const uint64_t *at = places_.find(hash, [&](uint64_t each) { return same(items_[each]); });
    if (at != nullptr) return items_[*at];
    is_whole_ = is_whole_ && places_.reserve() && items_.push_back(item);
    if (!is_whole_) return spare_ = item;
    places_.add(hash, items_.size() - 1);
    return items_[items_.size() - 1];
  }
  Vector<T> &items() { return items_; }
  bool is_whole() const { return is_whole_; }  // false: there was no memory

 private:
  HashTable<uint64_t> places_{HostAllocator()};  // index into items_
  Vector<T> items_;
  T spare_ = {};
  bool is_whole_ = true;
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

// A heap's last TRACE_HELD.
struct WalkHeap {
  uint64_t number = 0, held = 0, paused = 0;
  uint64_t bytes = 0;  // index into the walk's bytes
};

class Walk {
 public:
  // `input` outlives the walk.
  Walk(const view_input &input, uint32_t index);

  // Goes to the next chosen event. False: the end, or no memory.
  bool next();
  bool is_out_of_memory() const { return is_out_of_memory_; }
  const trace &of() const { return trace_; }
  const trace_event &event() const { return *event_; }
  // Of the event; none: the event is of no block.
  const WalkBlock *block() const { return event_->block == TRACE_NO_BLOCK ? nullptr : &block_; }
  // Nanoseconds on the clock of all traces.
  uint64_t time(uint64_t of_trace) const { return of_trace + offset_; }
  // The bytes that the event changed, behind it; null: none.
  const WalkBytes *changed() const { return changed_ == UINT64_MAX ? nullptr : &bytes_[changed_]; }
  const Vector<WalkBytes> &bytes() const { return bytes_; }
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
  WalkBytes *bytes_of(gmm_device device, uint32_t tag);

  const view_choice &choice_;
  const trace &trace_;
  uint64_t offset_ = 0, next_ = 0, changed_ = UINT64_MAX, live_ = 0;
  const trace_event *event_ = nullptr;
  WalkBlock block_;
  Vector<WalkBlock> blocks_;
  Vector<WalkBytes> bytes_;
  Vector<WalkHeap> heaps_;
  bool is_out_of_memory_ = false;
};

// Calls fn(Walk &) behind each chosen event of a trace. 0: no memory, which it reports.
template <typename Fn>
int for_each_event(const view_input &input, uint32_t index, Fn fn) {
  Walk walk(input, index);
  while (walk.next()) fn(walk);
  if (walk.is_out_of_memory()) std::fprintf(stderr, "gmm: trace: no memory for the events\n");
  return !walk.is_out_of_memory();
}

// Whether it took a time: a pause, resume, trim, compaction or move.
inline bool is_operation(const trace_event &event) {
  return (event.type >= TRACE_PAUSE && event.type <= TRACE_COMPACT) || event.type == TRACE_MOVE;
}
// "alloc", "live", "free", ... ; "event" for types that this release does not know.
const char *event_name(const trace_event &event);
const char *tag_name(const trace &of, uint32_t index);
// "DEVICE", ...; "" of memory without a kind.
const char *kind_text(uint16_t kind);
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
bool find_peak(const view_input &input, uint64_t *time, uint64_t *bytes);
// The start of the first trace, nanoseconds since 1970.
uint64_t first_epoch(const view_input &input);

}  // namespace gmm
#endif
