// SPDX-License-Identifier: Apache-2.0
// One page that shows traces without a network: page.html, with the data of the traces in it as JSON. The page draws;
// this file counts. A series has at most kPoints points: those of most and of least live bytes of each step in time.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"
#include "page.h"

using namespace gmm;

namespace {

constexpr uint64_t kPoints = 2000, kMostHolders = 200, kMostStacks = 50, kMostOperations = 5000, kMostBlocks = 20000;

class Writer {
 public:
  Writer(FILE *out, const view_input &input, uint32_t index, uint64_t end)
      : out_(out), input_(input), index_(index), step_(std::max<uint64_t>(1, 2 * end / kPoints)) {}
  bool run(uint64_t peak);

 private:
  struct Point {
    uint64_t time;
    WalkBytes bytes;
  };
  struct Series {
    Point low, high;  // of this step
    bool is_begun;
  };
  void follow(const Walk &walk);
  void flush(uint64_t series);
  void put_operations();
  void put_operation(const Walk &walk);
  void put_moment(const char *name, uint64_t time);
  void put_place(const WalkBlock &block);
  void put_stacks(const Vector<WalkGroup> &holders);
  bool put_series(const Walk &walk);

  FILE *const out_;
  const view_input &input_;
  const uint32_t index_;
  const uint64_t step_;
  Vector<Series> series_;
  Vector<Point> points_;
  bool is_first_ = true, is_whole_ = true;
};

void Writer::flush(uint64_t at) {
  Series &series = series_[at];
  if (!series.is_begun) return;
  const Point &first = series.low.time < series.high.time ? series.low : series.high;
  const Point &second = &first == &series.low ? series.high : series.low;
  is_whole_ = points_.push_back(first) && is_whole_;
  if (second.time != first.time) is_whole_ = points_.push_back(second) && is_whole_;
  series.is_begun = false;
}

void Writer::follow(const Walk &walk) {
  if (walk.changed() == nullptr) return;
  const auto at = static_cast<uint64_t>(walk.changed() - walk.bytes().data());
  while (series_.size() <= at)
    if (!series_.push_back(Series{})) {
      is_whole_ = false;
      return;
    }
  const Point now{walk.time(walk.event().time), *walk.changed()};
  Series &series = series_[at];
  if (series.is_begun && now.time / step_ != series.low.time / step_) flush(at);
  if (!series.is_begun) series = Series{now, now, true};
  if (now.bytes.live < series.low.bytes.live) series.low = now;
  if (now.bytes.live >= series.high.bytes.live) series.high = now;
}

bool Writer::put_series(const Walk &walk) {
  for (uint64_t i = 0; i < series_.size(); ++i) flush(i);
  std::fputs("\"series\":[", out_);
  for (uint64_t i = 0; i < walk.bytes().size(); ++i) {
    const WalkBytes &of = walk.bytes()[i];
    std::fprintf(out_, "%s{\"device\":%d,\"tag\":", i == 0 ? "" : ",\n", of.device);
    put_json(out_, tag_name(walk.of(), of.tag));
    std::fputs(",\"points\":[", out_);
    bool is_first = true;
    for (const Point &point : points_) {
      if (point.bytes.device != of.device || point.bytes.tag != of.tag) continue;
      std::fprintf(out_, "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", is_first ? "" : ",", point.time,
                   point.bytes.live, point.bytes.held, point.bytes.paused);
      is_first = false;
    }
    std::fputs("]}", out_);
  }
  std::fputs("],\n", out_);
  return is_whole_;
}

void Writer::put_operation(const Walk &walk) {
  const trace_event &event = walk.event();
  separate(out_, &is_first_);
  std::fprintf(out_, "[\"%s\",", event_name(event));
  const bool is_of_tag = event.type == TRACE_PAUSE || event.type == TRACE_RESUME;
  put_json(out_, event.type == TRACE_FAILED ? gmm_result_name(event.result)
                 : is_of_tag                ? tag_name(walk.of(), event.tag)
                                            : "");
  std::fprintf(out_, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", walk.time(event.began), event.time - event.began,
               event.size);
  put_json(out_, event.type == TRACE_FAILED ? walk.of().texts[event.value] : "");
  std::fputc(']', out_);
}

void Writer::put_operations() {
  uint64_t count = 0;
  std::fputs("\"operations\":[", out_);
  is_first_ = true;
  const auto put = [&](const Walk &walk) {
    const trace_event &event = walk.event();
    if ((is_operation(event) || event.type == TRACE_FAILED) && ++count <= kMostOperations) put_operation(walk);
  };
  is_whole_ = for_each_event(input_, index_, put) && is_whole_;
  std::fprintf(out_, "],\"operation_count\":%" PRIu64 ",\n", count);
}

const Vector<WalkGroup> &largest_first(WalkGroups *groups) {
  std::sort(groups->items().begin(), groups->items().end(),
            [](const WalkGroup &a, const WalkGroup &b) { return a.live_bytes > b.live_bytes; });
  return groups->items();
}

void Writer::put_place(const WalkBlock &block) {
  const trace &of = input_.traces[index_];
  put_json(out_, tag_name(of, block.alloc->tag));
  std::fprintf(out_, ",\"%s\",%d,", kind_text(block.alloc->kind), block.alloc->device);
}

// The stacks whose blocks hold the most, as far as blocks have stacks.
void Writer::put_stacks(const Vector<WalkGroup> &holders) {
  std::fputs("\"stacks\":[", out_);
  for (uint64_t i = 0; i < std::min(holders.size(), kMostStacks); ++i) {
    std::fprintf(out_, "%s[%" PRIu64 ",%" PRIu64 ",[", i == 0 ? "" : ",\n", holders[i].live_bytes, holders[i].live);
    bool is_first = true;
    for_each_frame(input_.traces[index_], holders[i].block.alloc->stack, [&](const trace_frame &frame) {
      FrameText text;
      frame_text(frame, text);
      separate(out_, &is_first);
      put_json(out_, text);
    });
    std::fputs("]]", out_);
  }
  std::fputc(']', out_);
}

// The holders of the memory at a time, the largest first, and where their blocks lie.
void Writer::put_moment(const char *name, uint64_t time) {
  view_input until = input_;
  until.choice.to = time;
  Walk walk(until, index_);
  while (walk.next()) continue;
  Vector<WalkBlock> blocks;
  WalkGroups groups, stacks;
  walk.for_each_live([&](const WalkBlock &block) {
    is_whole_ = blocks.push_back(block) && is_whole_;
    group_of(block, GroupBy::kPlace, &groups).add_live(1, block.alloc->size);
    if (block.alloc->stack != 0) group_of(block, GroupBy::kStack, &stacks).add_live(1, block.alloc->value);
  });
  const Vector<WalkGroup> &holders = largest_first(&groups);
  std::fprintf(out_, "\"%s\":{\"time\":%" PRIu64 ",\"live\":%" PRIu64 ",\"holder_count\":%" PRIu64 ",\"holders\":[",
               name, time, walk.live(), holders.size());
  for (uint64_t i = 0; i < std::min(holders.size(), kMostHolders); ++i) {
    std::fputs(i == 0 ? "[" : ",\n[", out_);
    put_place(holders[i].block);
    put_json(out_, holders[i].block.name);
    std::fprintf(out_, ",%" PRIu64 ",%" PRIu64 "]", holders[i].live_bytes, holders[i].live);
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const WalkBlock &a, const WalkBlock &b) { return a.alloc->address < b.alloc->address; });
  std::fprintf(out_, "],\"block_count\":%" PRIu64 ",\"blocks\":[", blocks.size());
  for (uint64_t i = 0; i < std::min(blocks.size(), kMostBlocks); ++i) {
    std::fputs(i == 0 ? "[" : ",[", out_);
    put_place(blocks[i]);
    // As a text: an address has more bits than a number of JavaScript.
    std::fprintf(out_, "\"%" PRIx64 "\",%" PRIu64 "]", blocks[i].alloc->address, blocks[i].alloc->size);
  }
  std::fputs("],", out_);
  put_stacks(largest_first(&stacks));
  std::fputc('}', out_);
  is_whole_ = is_whole_ && groups.is_whole() && stacks.is_whole();
}

bool Writer::run(uint64_t peak) {
  const trace &of = input_.traces[index_];
  std::fprintf(out_, "{\"process\":%" PRIu32 ",\"file\":", of.process);
  put_json(out_, of.file);
  std::fprintf(out_, ",\"events\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"ended\":%s,\n", of.count, of.lost,
               of.ended != 0 ? "true" : "false");
  Walk walk(input_, index_);
  while (walk.next()) follow(walk);
  if (!put_series(walk)) return false;
  put_operations();
  put_moment("peak", peak);
  std::fputs(",\n", out_);
  put_moment("end", input_.choice.to);
  std::fputc('}', out_);
  return is_whole_ && !walk.is_out_of_memory();
}

}  // namespace

int view_html(const view_input *input, FILE *out) {
  uint64_t end = 0, peak = 0, bytes = 0;
  for (uint32_t i = 0; i < input->count; ++i)
    if (!for_each_event(*input, i, [&](const Walk &walk) { end = std::max(end, walk.time(walk.event().time)); }))
      return 0;
  view_input until = *input;
  until.choice.to = end;
  if (!find_peak(until, &peak, &bytes)) return 0;
  const char *const place = std::strstr(help_page, "\"DATA\"");
  std::fwrite(help_page, 1, static_cast<size_t>(place - help_page), out);
  std::fprintf(out, "{\"epoch\":%" PRIu64 ",\"end\":%" PRIu64 ",\"processes\":[", first_epoch(*input) / 1000000, end);
  for (uint32_t i = 0; i < input->count; ++i) {
    if (i != 0) std::fputs(",\n", out);
    if (!Writer(out, until, i, end).run(peak)) return 0;
  }
  std::fprintf(out, "]}%s", place + std::strlen("\"DATA\""));
  return 1;
}
