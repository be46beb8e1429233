// SPDX-License-Identifier: Apache-2.0
// Perfetto's protobuf. Each trace is a process, with counters of live, reserved and paused bytes by device and tag. An
// operation (pause, resume, trim, compaction, move) is a slice of its thread. A failure is a mark with its stack, and
// the peak one with the stacks that held the most. The numbers of fields are those of protos/perfetto/trace in
// Perfetto's repository.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

// A call a line, the innermost first.
List<char> stack_text(const trace &of, uint32_t stack) {
  List<char> all;
  for_each_frame(of, stack, [&](const trace_frame &frame) {
    FrameText text;
    frame_text(frame, text);
    for (const char *at = text; *at != '\0'; ++at) all.add(*at);
    all.add('\n');
  });
  all.add('\0');
  return all;
}

enum : uint32_t { kPacket = 1 };                                               // Trace
enum : uint32_t { kTimestamp = 8, kSequence = 10, kEvent = 11, kTrack = 60 };  // TracePacket
enum : uint32_t { kTrackUuid = 1, kTrackName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8 };
enum : uint32_t { kAnnotation = 4, kType = 9, kOfTrack = 11, kCategory = 22, kName = 23, kValue = 30 };  // TrackEvent
enum : uint64_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterValue = 4 };
enum : uint32_t { kUintValue = 3, kStringValue = 6, kAnnotationName = 10 };

constexpr struct {
  const char *name;
  uint64_t WalkBytes::*value;
} kSeries[] = {{"live", &WalkBytes::live}, {"reserved", &WalkBytes::held}, {"paused", &WalkBytes::paused}};
constexpr uint64_t kSeriesCount = sizeof kSeries / sizeof *kSeries, kPeakStacks = 10;

class PerfettoWriter {
 public:
  PerfettoWriter(FILE *out, const view_input &input, uint32_t index) : out_(out), input_(input), index_(index) {}
  void run(const Peak &peak);

 private:
  uint64_t process_track() const { return (uint64_t{index_} + 1) << 40; }
  uint64_t thread_track(uint32_t thread) const { return process_track() + 1 + thread; }
  uint64_t counter_track(uint64_t bytes, uint64_t series) const {
    return process_track() + (uint64_t{1} << 32) + bytes * kSeriesCount + series;
  }
  void put(const Message &packet);
  void put(uint64_t time, const Message &event) {
    put(Message().number(kTimestamp, time).number(kSequence, index_ + 1).message(kEvent, event));
  }
  void put_track(const Message &track) { put(Message().number(kSequence, index_ + 1).message(kTrack, track)); }
  void put_tracks();
  void put_counters(const Walk &walk);
  void put_operation(const Walk &walk);
  void put_failure(const Walk &walk);
  void put_peak(const Peak &peak);
  static Message mark(uint64_t track, const char *name) {
    Message made;
    made.number(kType, kInstant).number(kOfTrack, track).text(kCategory, "gmm").text(kName, name);
    return made;
  }
  static void annotate(Message *event, const char *name, uint64_t value) {
    event->message(kAnnotation, Message().text(kAnnotationName, name).number(kUintValue, value));
  }
  static void annotate(Message *event, const char *name, const char *value) {
    event->message(kAnnotation, Message().text(kAnnotationName, name).text(kStringValue, value));
  }

  FILE *const out_;
  const view_input &input_;
  const uint32_t index_;
  List<WalkBytes> counters_;  // as last written; their tracks have been
};

void PerfettoWriter::put(const Message &packet) {
  Message whole;
  whole.message(kPacket, packet);
  std::fwrite(whole.data(), 1, whole.size(), out_);
}

void PerfettoWriter::put_tracks() {
  const trace &of = input_.traces[index_];
  char name[64];
  std::snprintf(name, sizeof name, "gmm in process %" PRIu32, of.process);
  put_track(
      Message().number(kTrackUuid, process_track()).message(kProcess, Message().number(1, of.process).text(6, name)));
  for (uint32_t i = 0; i < of.thread_count && of.threads != nullptr; ++i)
    put_track(Message()
                  .number(kTrackUuid, thread_track(i))
                  .number(kParent, process_track())
                  .message(kThread, Message().number(1, of.process).number(2, of.threads[i])));
}

void PerfettoWriter::put_counters(const Walk &walk) {
  const WalkBytes *now = walk.changed();
  if (now == nullptr) return;
  const auto at = static_cast<uint64_t>(now - walk.bytes().data());
  while (counters_.size() <= at) {
    const WalkBytes &made = walk.bytes()[counters_.size()];
    for (uint64_t series = 0; series < kSeriesCount; ++series) {
      char name[TRACE_NAME_BYTES + 64];
      std::snprintf(name, sizeof name, "device %d, %s, %s", made.device, tag_name(walk.of(), made.tag),
                    kSeries[series].name);
      put_track(Message()
                    .number(kTrackUuid, counter_track(counters_.size(), series))
                    .number(kParent, process_track())
                    .text(kTrackName, name)
                    .message(kCounter, Message().number(3, 3)));  // CounterDescriptor.unit: UNIT_SIZE_BYTES
    }
    counters_.add(WalkBytes{made.device, made.tag});
  }
  for (uint64_t series = 0; series < kSeriesCount; ++series) {
    const uint64_t value = now->*kSeries[series].value;
    if (std::exchange(counters_[at].*kSeries[series].value, value) == value) continue;
    put(walk.time(walk.event().time),
        Message().number(kType, kCounterValue).number(kOfTrack, counter_track(at, series)).number(kValue, value));
  }
}

void PerfettoWriter::put_operation(const Walk &walk) {
  const trace_event &event = walk.event();
  const uint64_t track = thread_track(event.thread), took = event.time - event.began;
  char name[TRACE_NAME_BYTES + 32];
  const char *tag = operation_tag(walk.of(), event);
  std::snprintf(name, sizeof name, "%s%s%s", event_name(event), *tag != '\0' ? " " : "", tag);
  Message begin;
  begin.number(kType, kSliceBegin).number(kOfTrack, track).text(kCategory, "gmm").text(kName, name);
  annotate(&begin, "bytes", event.size);
  if (event.type == TRACE_COMPACT) annotate(&begin, "released bytes", event.value);
  if (took != 0) annotate(&begin, "MB per second", event.size * 1000 / took);
  put(walk.time(event.began), begin);
  put(walk.time(event.time), Message().number(kType, kSliceEnd).number(kOfTrack, track));
}

void PerfettoWriter::put_failure(const Walk &walk) {
  const trace_event &event = walk.event();
  Message failure = mark(thread_track(event.thread), gmm_result_name(event.result));
  annotate(&failure, "message", walk.of().texts[event.value]);
  if (event.stack != 0) annotate(&failure, "stack", stack_text(walk.of(), event.stack).data());
  put(walk.time(event.time), failure);
}

// Each stack names its bytes.
void PerfettoWriter::put_peak(const Peak &peak) {
  const Walk walk = walk_to(input_, index_, peak.time);
  WalkGroups stacks;
  walk.for_each_live([&](const WalkBlock &block) {
    if (block.alloc->stack != 0) group_of(block, GroupBy::kStack, &stacks).add_live(1, block.alloc->value);
  });
  sort_largest_first(&stacks);
  Message moment = mark(process_track(), "peak");
  annotate(&moment, "bytes", walk.live());
  for (uint64_t i = 0; i < std::min(stacks.items.size(), kPeakStacks); ++i)
    annotate(&moment, stack_text(walk.of(), stacks.items[i].block.alloc->stack).data(), stacks.items[i].live_bytes);
  if (peak.bytes != 0) put(peak.time, moment);
}

void PerfettoWriter::run(const Peak &peak) {
  put_tracks();
  for_each_event(input_, index_, [&](const Walk &walk) {
    put_counters(walk);
    if (is_operation(walk.event())) put_operation(walk);
    if (walk.event().type == TRACE_FAILED) put_failure(walk);
  });
  put_peak(peak);
}

}  // namespace

void view_perfetto(const view_input *input, FILE *out) {
  const Peak peak = find_peak(*input);
  for (uint32_t i = 0; i < input->count; ++i) PerfettoWriter(out, *input, i).run(peak);
}
