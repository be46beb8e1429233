// SPDX-License-Identifier: Apache-2.0
// The snapshot of PyTorch's allocator as JSON, for its viewer memory_viz: the events of each device, and the segments
// with their blocks at the end. The viewer goes from there back through the events, so each block must lie in a
// segment. A trace has no addresses of driver allocations: the segments are the ranges of whole 2 MiB that blocks ever
// touched, less paused memory. A pause frees the blocks and unmaps their pages, and a resume undoes that. A block's
// frames are its stack, its name, its tag and its kind.
#include <algorithm>
#include <cstdio>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

constexpr uint64_t kSegment = uint64_t{2} << 20;

class SnapshotWriter {
 public:
  SnapshotWriter(FILE *file, const view_input &input) : out_(write_to_file, file), input_(input) {}
  void run();

 private:
  struct Range {
    uint64_t begin, end;
  };
  void put_frames(const trace &of, uint32_t stack, const WalkBlock *block);
  void put_event(const Walk &walk, const char *action, const WalkBlock *block);
  void put_free(const Walk &walk, const WalkBlock &block);
  void put_transition(const Walk &walk, gmm_device device);
  void put_events(const Walk &walk, gmm_device device);
  void put_segments(const Walk &walk);
  template <typename Fn>
  void for_each_device(Fn fn);
  void put_segment(const trace &of, Range range, const WalkBlock *first, const WalkBlock *end);

  JsonWriter out_;
  const view_input &input_;
  gmm_device number_ = 0;    // of the device in the file
  bool has_events_ = false;  // false: they are only followed
  List<bool> paused_;        // by block
  List<Range> touched_;
};

void SnapshotWriter::put_frames(const trace &of, uint32_t stack, const WalkBlock *block) {
  out_.open("frames", '[');
  for_each_frame(of, stack, [&](const trace_frame &frame) {
    out_.object("name", frame.name, "filename", frame.file, "line", frame.line);
  });
  if (block != nullptr) {
    char kind[32];
    std::snprintf(kind, sizeof kind, "tag, %s", kind_text(block->alloc->kind));
    if (block->name[0] != '\0') out_.object("name", block->name, "filename", "block", "line", 0);
    out_.object("name", tag_name(of, block->alloc->tag), "filename", kind, "line", 0);
  }
  out_.close("]");
}

// Of a block; null: of a failure.
void SnapshotWriter::put_event(const Walk &walk, const char *action, const WalkBlock *block) {
  if (!has_events_) return;
  const trace_event &event = walk.event(), &about = block == nullptr ? event : *block->alloc;
  out_.open('{');
  out_.fields("action", action, block == nullptr ? "device_free" : "addr", about.address, "size", about.size, "stream",
              walk.of().streams[event.stream], "time_us", (walk.of().epoch + event.time) / 1000);
  put_frames(walk.of(), about.stack, block);
  out_.close("}");
}

void SnapshotWriter::put_free(const Walk &walk, const WalkBlock &block) {
  put_event(walk, "free_requested", &block);
  put_event(walk, "free_completed", &block);
}

void SnapshotWriter::put_transition(const Walk &walk, gmm_device device) {
  const trace_event &event = walk.event();
  const bool pauses = event.type == TRACE_PAUSE;
  walk.for_each_live([&](const WalkBlock &live) {
    const trace_event &alloc = *live.alloc;
    if (alloc.kind != GMM_KIND_VMM || alloc.device != device || paused_[alloc.block] == pauses) return;
    if (event.tag != TRACE_NO_TAG && event.tag != alloc.tag) return;
    paused_[alloc.block] = pauses;
    if (pauses) put_free(walk, live);
    put_event(walk, pauses ? "segment_unmap" : "segment_map", &live);
    if (!pauses) put_event(walk, "alloc", &live);
  });
}

void SnapshotWriter::put_events(const Walk &walk, gmm_device device) {
  const trace_event &event = walk.event();
  const WalkBlock *block = walk.block();
  if (block != nullptr && block->alloc->device != device) return;
  if (event.type == TRACE_PAUSE || event.type == TRACE_RESUME) put_transition(walk, device);
  if (event.type == TRACE_ALLOC) {
    touched_.add({event.address & ~(kSegment - 1), (event.address + event.size + kSegment - 1) & ~(kSegment - 1)});
    paused_[event.block] = false;
    put_event(walk, "alloc", block);
  }
  if (event.type == TRACE_FREE && !paused_[event.block]) put_free(walk, *block);
  if (event.type == TRACE_FAILED && event.size != 0 && event.device == device) put_event(walk, "oom", nullptr);
}

void SnapshotWriter::put_segment(const trace &of, Range range, const WalkBlock *first, const WalkBlock *end) {
  if (range.begin == range.end) return;
  uint64_t live = 0, at = range.begin;
  for (const WalkBlock *block = first; block != end; ++block) live += block->alloc->size;
  out_.open('{');
  out_.fields("device", number_, "address", range.begin, "total_size", range.end - range.begin, "allocated_size", live,
              "active_size", live, "requested_size", live, "stream", 0, "segment_type", "large", "is_expandable", true);
  out_.key("segment_pool_id");
  out_.array(0, 0);
  out_.key("frames");
  out_.array();
  out_.open("blocks", '[');
  const auto put_block = [&](uint64_t until, uint64_t requested, const WalkBlock *block) {
    if (until == at) return;
    out_.open('{');
    out_.fields("address", at, "size", until - at, "requested_size", requested, "state",
                block == nullptr ? "inactive" : "active_allocated");
    put_frames(of, block == nullptr ? 0 : block->alloc->stack, block);
    out_.close("}");
    at = until;
  };
  for (const WalkBlock *block = first; block != end; ++block) {
    put_block(block->alloc->address, 0, nullptr);
    put_block(at + block->alloc->size, block->alloc->size, block);
  }
  put_block(range.end, 0, nullptr);
  out_.close("]}");
}

void SnapshotWriter::put_segments(const Walk &walk) {
  const List<WalkBlock> live = live_by_address(walk);
  std::sort(touched_.begin(), touched_.end(), [](const Range &a, const Range &b) { return a.begin < b.begin; });
  const WalkBlock *block = live.begin();
  for (uint64_t i = 0; i < touched_.size();) {
    Range range = touched_[i];
    for (++i; i < touched_.size() && touched_[i].begin <= range.end; ++i)
      range.end = std::max(range.end, touched_[i].end);
    while (block != live.end() && block->alloc->address < range.begin) ++block;  // of another device
    const WalkBlock *first = block;
    for (; block != live.end() && block->alloc->address < range.end; ++block) {
      if (!paused_[block->alloc->block]) continue;
      put_segment(walk.of(), {range.begin, block->alloc->address}, first, block);
      range.begin = block->alloc->address + block->alloc->size;
      first = block + 1;
    }
    put_segment(walk.of(), range, first, block);
  }
}

// The viewer has one process. The devices of further traces follow those of the first.
template <typename Fn>
void SnapshotWriter::for_each_device(Fn fn) {
  number_ = 0;
  for (uint32_t i = 0; i < input_.count; ++i) {
    const trace &of = input_.traces[i];
    gmm_device devices = 1;
    for (uint64_t j = 0; j < of.count; ++j) devices = std::max(devices, of.events[j].device + 1);
    for (gmm_device device = 0; device < devices; ++device, ++number_) {
      touched_.clear();
      paused_.clear();
      paused_.grow_to(of.block_count);
      if (has_events_) out_.open('[');
      Walk walk(input_, i);
      while (walk.next()) put_events(walk, device);
      if (has_events_) out_.close("]");
      fn(walk);
    }
  }
}

void SnapshotWriter::run() {
  out_.open('{');
  out_.key("allocator_settings");
  out_.object();
  out_.key("external_annotations");
  out_.array();
  out_.open("segments", '[');
  for_each_device([&](const Walk &walk) { put_segments(walk); });
  out_.close("]");
  has_events_ = true;
  out_.open("device_traces", '[');
  for_each_device([](const Walk &) {});
  out_.close("]}");
  out_.flush();
}

}  // namespace

void view_memory_viz(const view_input *input, FILE *out) { SnapshotWriter(out, *input).run(); }
