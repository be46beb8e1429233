// SPDX-License-Identifier: Apache-2.0
// One page that shows traces without a network: page.html, with the data of the traces in it as JSON. The page draws;
// this file counts. A series has at most kPoints points: those of most and of least live bytes of each step in time.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"
#include "page.h"

using namespace gmm;

namespace {

constexpr uint64_t kPoints = 2000, kMostHolders = 200, kMostStacks = 50, kMostOperations = 5000, kMostBlocks = 20000;

struct Point {
  uint64_t time;
  WalkBytes bytes;
};

class HtmlWriter {
 public:
  HtmlWriter(JsonWriter &out, const view_input &input, uint32_t index, uint64_t end)
      : out_(out),
        input_(input),
        of_(input.traces[index]),
        index_(index),
        step_(std::max<uint64_t>(1, 2 * end / kPoints)) {}
  void run(uint64_t peak);

 private:
  struct Series {
    Point low, high;  // of this step
    bool is_begun;
  };
  void follow(const Walk &walk);
  void flush(Series &series);
  void put_series(const Walk &walk);
  void put_operations();
  void put_moment(const char *name, uint64_t time);
  void put_map();

  JsonWriter &out_;
  const view_input &input_;
  const trace &of_;
  const uint32_t index_;
  const uint64_t step_;
  List<Series> series_;
  List<Point> points_;
  // The heaps hold so much now; the moment of the most, and of the most live bytes then.
  uint64_t held_ = 0, most_held_ = 0, live_of_most_ = 0, time_of_most_ = 0;
};

void HtmlWriter::flush(Series &series) {
  if (!series.is_begun) return;
  const bool is_rise = series.low.time < series.high.time;
  points_.add(is_rise ? series.low : series.high);
  if (series.low.time != series.high.time) points_.add(is_rise ? series.high : series.low);
  series.is_begun = false;
}

void HtmlWriter::follow(const Walk &walk) {
  if (walk.changed() == nullptr) return;
  series_.grow_to(walk.bytes().size());
  Series &series = series_[static_cast<uint64_t>(walk.changed() - walk.bytes().data())];
  const Point now{walk.time(walk.event().time), *walk.changed()};
  if (series.is_begun && now.time / step_ != series.low.time / step_) flush(series);
  if (!series.is_begun) series = Series{now, now, true};
  if (walk.event().type == TRACE_HELD) {
    held_ = 0;
    for (const WalkBytes &each : walk.bytes()) held_ += each.held;
  }
  if (held_ > most_held_ || (held_ == most_held_ && walk.live() > live_of_most_)) {
    most_held_ = held_;
    live_of_most_ = walk.live();
    time_of_most_ = now.time;
  }
  if (now.bytes.live < series.low.bytes.live) series.low = now;
  if (now.bytes.live >= series.high.bytes.live) series.high = now;
}

void HtmlWriter::put_series(const Walk &walk) {
  for (Series &series : series_) flush(series);
  out_.open("series", '[');
  for (const WalkBytes &of : walk.bytes()) {
    out_.open('{');
    out_.fields("device", of.device, "tag", tag_name(of_, of.tag));
    out_.open("points", '[');
    for (const Point &point : points_)
      if (point.bytes.device == of.device && point.bytes.tag == of.tag)
        out_.array(point.time, point.bytes.live, point.bytes.held, point.bytes.paused);
    out_.close("]}");
  }
  out_.close("]");
}

void HtmlWriter::put_operations() {
  uint64_t count = 0;
  out_.open("operations", '[');
  for_each_event(input_, index_, [&](const Walk &walk) {
    const trace_event &event = walk.event();
    const bool has_failed = event.type == TRACE_FAILED;
    if ((!is_operation(event) && !has_failed) || ++count > kMostOperations) return;
    out_.array(event_name(event), has_failed ? gmm_result_name(event.result) : operation_tag(of_, event),
               walk.time(event.began), event.time - event.began, event.size, has_failed ? of_.texts[event.value] : "");
  });
  out_.close("]");
  out_.fields("operation_count", count);
}

void HtmlWriter::put_map() {
  const List<WalkBlock> blocks = live_by_address(walk_to(input_, index_, time_of_most_));
  out_.open("map", '{');
  out_.fields("time", time_of_most_, "held", most_held_, "live", live_of_most_);
  out_.open("blocks", '[');
  for (uint64_t i = 0; i < std::min(blocks.size(), kMostBlocks); ++i) {
    const trace_event &alloc = *blocks[i].alloc;
    out_.array(tag_name(of_, alloc.tag), kind_text(alloc.kind), alloc.device, Hexadecimal{alloc.address}, alloc.size);
  }
  out_.close("]}");
}

void HtmlWriter::put_moment(const char *name, uint64_t time) {
  const Walk walk = walk_to(input_, index_, time);
  const List<WalkBlock> blocks = live_by_address(walk);
  WalkGroups groups, stacks;
  for (const WalkBlock &block : blocks) {
    group_of(block, GroupBy::kPlace, &groups).add_live(1, block.alloc->size);
    if (block.alloc->stack != 0) group_of(block, GroupBy::kStack, &stacks).add_live(1, block.alloc->value);
  }
  sort_largest_first(&groups);
  sort_largest_first(&stacks);
  out_.open(name, '{');
  out_.fields("time", time, "live", walk.live(), "holder_count", groups.items.size());
  out_.open("holders", '[');
  for (uint64_t i = 0; i < std::min(groups.items.size(), kMostHolders); ++i) {
    const WalkGroup &group = groups.items[i];
    const trace_event &place = *group.block.alloc;
    out_.array(tag_name(of_, place.tag), kind_text(place.kind), place.device, group.block.name, group.live_bytes,
               group.live);
  }
  out_.close("]");
  out_.open("stacks", '[');
  for (uint64_t i = 0; i < std::min(stacks.items.size(), kMostStacks); ++i) {
    out_.open('[');
    out_.values(stacks.items[i].live_bytes, stacks.items[i].live);
    out_.open('[');
    for_each_frame(of_, stacks.items[i].block.alloc->stack, [&](const trace_frame &frame) {
      FrameText text;
      frame_text(frame, text);
      out_.value(text);
    });
    out_.close("]]");
  }
  out_.close("]}");
}

void HtmlWriter::run(uint64_t peak) {
  out_.open('{');
  out_.fields("process", of_.process, "file", of_.file, "events", of_.count, "lost", of_.lost, "ended", of_.ended != 0);
  Walk walk(input_, index_);
  while (walk.next()) follow(walk);
  put_series(walk);
  put_operations();
  put_moment("peak", peak);
  put_moment("end", input_.choice.to);
  put_map();
  out_.close("}");
}

}  // namespace

void view_html(const view_input *input, FILE *file) {
  uint64_t end = 1;
  for (uint32_t i = 0; i < input->count; ++i)
    for_each_event(*input, i, [&](const Walk &walk) { end = std::max(end, walk.time(walk.event().time)); });
  view_input until = *input;
  until.choice.to = end;
  const uint64_t peak = find_peak(until).time;
  const char *const place = std::strstr(help_page, "\"DATA\"");
  std::fwrite(help_page, 1, static_cast<size_t>(place - help_page), file);
  JsonWriter out(write_to_file, file);
  out.open('{');
  out.fields("epoch", first_epoch(*input) / 1000000, "end", end);
  out.open("processes", '[');
  for (uint32_t i = 0; i < input->count; ++i) HtmlWriter(out, until, i, end).run(peak);
  out.close("]}");
  out.flush();
  std::fputs(place + std::strlen("\"DATA\""), file);
}
