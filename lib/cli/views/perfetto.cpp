// SPDX-License-Identifier: Apache-2.0
// Perfetto's protobuf. Each trace is a process, with counters of live, reserved and paused bytes by device and tag. An
// operation (pause, resume, trim, compaction, move) is a slice of its thread, and a failure a mark. The numbers of
// fields are those of protos/perfetto/trace in Perfetto's repository.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

enum : uint32_t { kPacket = 1 };                                               // Trace
enum : uint32_t { kTimestamp = 8, kSequence = 10, kEvent = 11, kTrack = 60 };  // TracePacket
enum : uint32_t { kTrackUuid = 1, kTrackName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8 };
enum : uint32_t { kAnnotation = 4, kType = 9, kOfTrack = 11, kCategory = 22, kName = 23, kValue = 30 };  // TrackEvent
enum : uint64_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterValue = 4 };
enum : uint32_t { kUintValue = 3, kStringValue = 6, kAnnotationName = 10 };

enum Series : uint64_t { kLive, kHeld, kPaused, kSeriesCount };
constexpr const char *kSeriesNames[] = {"live", "reserved", "paused"};

class Writer {
 public:
  Writer(FILE *out, const view_input &input, uint32_t index) : out_(out), input_(input), index_(index) {}
  bool run();

 private:
  uint64_t process_track() const { return (uint64_t{index_} + 1) << 40; }
  uint64_t thread_track(uint32_t thread) const { return process_track() + 1 + thread; }
  uint64_t counter_track(uint64_t bytes, Series series) const {
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
  static void annotate(Message *event, const char *name, uint64_t value) {
    event->message(kAnnotation, Message().text(kAnnotationName, name).number(kUintValue, value));
  }
  static void annotate(Message *event, const char *name, const char *value) {
    event->message(kAnnotation, Message().text(kAnnotationName, name).text(kStringValue, value));
  }

  FILE *const out_;
  const view_input &input_;
  const uint32_t index_;
  Vector<WalkBytes> counters_;  // as last written; their tracks have been
  bool is_whole_ = true;
};

void Writer::put(const Message &packet) {
  Message whole;
  whole.message(kPacket, packet);
  std::fwrite(whole.data(), 1, whole.size(), out_);
  is_whole_ = is_whole_ && whole.is_whole();
}

void Writer::put_tracks() {
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

void Writer::put_counters(const Walk &walk) {
  const WalkBytes *now = walk.changed();
  if (now == nullptr) return;
  const auto at = static_cast<uint64_t>(now - walk.bytes().data());
  while (counters_.size() <= at) {
    const WalkBytes &made = walk.bytes()[counters_.size()];
    for (uint64_t series = 0; series < kSeriesCount; ++series) {
      char name[TRACE_NAME_BYTES + 64];
      std::snprintf(name, sizeof name, "device %d, %s, %s", made.device, tag_name(walk.of(), made.tag),
                    kSeriesNames[series]);
      put_track(Message()
                    .number(kTrackUuid, counter_track(counters_.size(), static_cast<Series>(series)))
                    .number(kParent, process_track())
                    .text(kTrackName, name)
                    .message(kCounter, Message().number(3, 3)));  // CounterDescriptor.unit: UNIT_SIZE_BYTES
    }
    if (!counters_.push_back(WalkBytes{made.device, made.tag})) {
      is_whole_ = false;
      return;
    }
  }
  const auto put_series = [&](Series series, uint64_t value, uint64_t *last) {
    if (value == *last) return;
    *last = value;
    put(walk.time(walk.event().time),
        Message().number(kType, kCounterValue).number(kOfTrack, counter_track(at, series)).number(kValue, value));
  };
  WalkBytes &last = counters_[at];
  put_series(kLive, now->live, &last.live);
  put_series(kHeld, now->held, &last.held);
  put_series(kPaused, now->paused, &last.paused);
}

void Writer::put_operation(const Walk &walk) {
  const trace_event &event = walk.event();
  const uint64_t track = thread_track(event.thread), took = event.time - event.began;
  char name[TRACE_NAME_BYTES + 32];
  const bool is_of_tag = event.type == TRACE_PAUSE || event.type == TRACE_RESUME;
  std::snprintf(name, sizeof name, "%s%s%s", event_name(event), is_of_tag ? " " : "",
                is_of_tag ? tag_name(walk.of(), event.tag) : "");
  Message begin;
  begin.number(kType, kSliceBegin).number(kOfTrack, track).text(kCategory, "gmm").text(kName, name);
  annotate(&begin, "bytes", event.size);
  if (event.type == TRACE_COMPACT) annotate(&begin, "released bytes", event.value);
  if (took != 0) annotate(&begin, "MB per second", event.size * 1000 / took);
  put(walk.time(event.began), begin);
  put(walk.time(event.time), Message().number(kType, kSliceEnd).number(kOfTrack, track));
}

void Writer::put_failure(const Walk &walk) {
  const trace_event &event = walk.event();
  Message mark;
  mark.number(kType, kInstant).number(kOfTrack, thread_track(event.thread)).text(kCategory, "gmm");
  mark.text(kName, gmm_result_name(event.result));
  annotate(&mark, "message", walk.of().texts[event.value]);
  put(walk.time(event.time), mark);
}

bool Writer::run() {
  put_tracks();
  const auto write = [&](const Walk &walk) {
    put_counters(walk);
    if (is_operation(walk.event())) put_operation(walk);
    if (walk.event().type == TRACE_FAILED) put_failure(walk);
  };
  return for_each_event(input_, index_, write) && is_whole_;
}

}  // namespace

int view_perfetto(const view_input *input, FILE *out) {
  for (uint32_t i = 0; i < input->count; ++i)
    if (!Writer(out, *input, i).run()) return 0;
  return 1;
}
