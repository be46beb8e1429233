// SPDX-License-Identifier: Apache-2.0
// The snapshot of PyTorch's allocator as JSON, for its viewer memory_viz: the events of each device, and the segments
// with their blocks at the end. A trace has no addresses of driver allocations, so a segment is a range of whole 2 MiB
// that live blocks of one heap touch. A block's frames are its stack, its name, its tag and its kind.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

constexpr uint64_t kSegment = uint64_t{2} << 20;

class Writer {
 public:
  Writer(FILE *out, const view_input &input) : out_(out), input_(input) {}
  bool run();

 private:
  void put_frames(const trace &of, const WalkBlock &block);
  void put_event(const Walk &walk, const char *action, uint64_t address, uint64_t size, const WalkBlock *block);
  void put_events(const Walk &walk, gmm_device device);
  void put_segments(const Walk &walk);
  void put_segment(const trace &of, const WalkBlock *first, const WalkBlock *end);

  FILE *const out_;
  const view_input &input_;
  bool is_first_ = true, is_whole_ = true;
};

void Writer::put_frames(const trace &of, const WalkBlock &block) {
  std::fputs(",\"frames\":[", out_);
  for_each_frame(of, block.alloc->stack, [&](const trace_frame &frame) {
    std::fputs("{\"name\":", out_);
    put_json(out_, frame.name);
    std::fputs(",\"filename\":", out_);
    put_json(out_, frame.file);
    std::fprintf(out_, ",\"line\":%" PRIu32 "},", frame.line);
  });
  if (block.name[0] != '\0') {
    std::fputs("{\"name\":", out_);
    put_json(out_, block.name);
    std::fputs(",\"filename\":\"block\",\"line\":0},", out_);
  }
  std::fputs("{\"name\":", out_);
  put_json(out_, tag_name(of, block.alloc->tag));
  std::fprintf(out_, ",\"filename\":\"tag, %s\",\"line\":0}]", kind_text(block.alloc->kind));
}

void Writer::put_event(const Walk &walk, const char *action, uint64_t address, uint64_t size, const WalkBlock *block) {
  const trace_event &event = walk.event();
  separate(out_, &is_first_);
  std::fprintf(out_,
               "{\"action\":\"%s\",\"%s\":%" PRIu64 ",\"size\":%" PRIu64 ",\"stream\":%" PRIu64 ",\"time_us\":%" PRIu64,
               action, event.type == TRACE_FAILED ? "device_free" : "addr", address, size,
               walk.of().streams[event.stream], (walk.of().epoch + event.time) / 1000);
  if (block != nullptr)
    put_frames(walk.of(), *block);
  else
    std::fputs(",\"frames\":[]", out_);
  std::fputc('}', out_);
}

// A pause takes the pages of a tag's blocks, and a resume brings them back.
void Writer::put_events(const Walk &walk, gmm_device device) {
  const trace_event &event = walk.event();
  const WalkBlock *block = walk.block();
  if (block != nullptr && block->alloc->device != device) return;
  switch (event.type) {
    case TRACE_ALLOC:
      return put_event(walk, "alloc", event.address, event.size, block);
    case TRACE_FREE:
      put_event(walk, "free_requested", event.address, block->alloc->size, block);
      return put_event(walk, "free_completed", event.address, block->alloc->size, block);
    case TRACE_PAUSE:
    case TRACE_RESUME:
      return walk.for_each_live([&](const WalkBlock &live) {
        const trace_event &alloc = *live.alloc;
        if (alloc.kind != GMM_KIND_VMM || alloc.device != device) return;
        if (event.tag != TRACE_NO_TAG && event.tag != alloc.tag) return;
        put_event(walk, event.type == TRACE_PAUSE ? "segment_unmap" : "segment_map", alloc.address, alloc.size, &live);
      });
    case TRACE_FAILED:
      if (event.size != 0 && event.device == device) put_event(walk, "oom", 0, event.size, nullptr);
      return;
    default:
      return;
  }
}

void Writer::put_segment(const trace &of, const WalkBlock *first, const WalkBlock *end) {
  const trace_event &alloc = *first->alloc, &last = *end[-1].alloc;
  const uint64_t base = alloc.address & ~(kSegment - 1);
  const uint64_t total = (last.address + last.size - base + kSegment - 1) & ~(kSegment - 1);
  uint64_t live = 0, at = base;
  for (const WalkBlock *block = first; block != end; ++block) live += block->alloc->size;
  separate(out_, &is_first_);
  std::fprintf(out_,
               "{\"device\":%d,\"address\":%" PRIu64 ",\"total_size\":%" PRIu64 ",\"allocated_size\":%" PRIu64
               ",\"active_size\":%" PRIu64 ",\"requested_size\":%" PRIu64 ",\"stream\":%" PRIu64
               ",\"segment_type\":\"large\",\"segment_pool_id\":[0,0],\"is_expandable\":true,"
               "\"frames\":[],\"blocks\":[",
               alloc.device, base, total, live, live, live, of.streams[alloc.stream]);
  const auto put_free = [&](uint64_t until, const char *behind) {
    if (until > at)
      std::fprintf(out_,
                   "{\"address\":%" PRIu64 ",\"size\":%" PRIu64
                   ",\"requested_size\":0,\"state\":\"inactive\","
                   "\"frames\":[]}%s",
                   at, until - at, behind);
  };
  for (const WalkBlock *block = first; block != end; ++block) {
    const trace_event &each = *block->alloc;
    put_free(each.address, ",");
    at = std::max(at, each.address + each.size);
    std::fprintf(out_,
                 "{\"address\":%" PRIu64 ",\"size\":%" PRIu64 ",\"requested_size\":%" PRIu64
                 ",\"state\":\"active_allocated\"",
                 each.address, each.size, each.size);
    put_frames(of, *block);
    std::fprintf(out_, "}%s", block + 1 != end || base + total > at ? "," : "");
  }
  put_free(base + total, "");
  std::fputs("]}", out_);
}

void Writer::put_segments(const Walk &walk) {
  Vector<WalkBlock> live;
  walk.for_each_live([&](const WalkBlock &block) { is_whole_ = live.push_back(block) && is_whole_; });
  std::sort(live.begin(), live.end(),
            [](const WalkBlock &a, const WalkBlock &b) { return a.alloc->address < b.alloc->address; });
  for (uint64_t i = 0, first = 0; i < live.size(); ++i) {
    const trace_event &now = *live[i].alloc;
    const bool is_last = i + 1 == live.size();
    const trace_event &next = *live[is_last ? i : i + 1].alloc;
    const uint64_t end = (now.address + now.size + kSegment - 1) & ~(kSegment - 1);
    if (!is_last && next.address < end + kSegment && next.device == now.device && next.tag == now.tag &&
        next.kind == now.kind)
      continue;
    put_segment(walk.of(), &live[first], &live[i] + 1);
    first = i + 1;
  }
}

// The viewer has one process. The devices of further traces follow those of the first.
bool Writer::run() {
  std::fputs("{\"allocator_settings\":{},\"external_annotations\":[],\"segments\":[", out_);
  for (uint32_t i = 0; i < input_.count; ++i) {
    Walk walk(input_, i);
    while (walk.next()) continue;
    put_segments(walk);
    is_whole_ = is_whole_ && !walk.is_out_of_memory();
  }
  std::fputs("],\"device_traces\":[", out_);
  for (uint32_t i = 0; i < input_.count; ++i) {
    gmm_device devices = 1;
    for (uint64_t j = 0; j < input_.traces[i].count; ++j)
      devices = std::max(devices, input_.traces[i].events[j].device + 1);
    for (gmm_device device = 0; device < devices; ++device) {
      std::fputs(i + static_cast<uint32_t>(device) == 0 ? "[" : ",[", out_);
      is_first_ = true;
      is_whole_ = for_each_event(input_, i, [&](const Walk &walk) { put_events(walk, device); }) && is_whole_;
      std::fputc(']', out_);
    }
  }
  std::fputs("]}\n", out_);
  return is_whole_;
}

}  // namespace

int view_memory_viz(const view_input *input, FILE *out) { return Writer(out, *input).run(); }
