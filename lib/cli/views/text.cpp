// SPDX-License-Identifier: Apache-2.0
// Views for people and programs that read lines.
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <utility>

#include "cli/views/walk.h"

using namespace gmm;

namespace {

constexpr double kMib = 1048576;

constexpr int kMostFrames = 16;  // of a stack for people
constexpr const char *kNextLine = "\n                         ";

// Names have no control characters; a quotation mark is doubled, as CSV has it.
void print_quoted(FILE *out, const char *text) {
  std::fputc('"', out);
  for (; *text != '\0'; ++text) {
    if (*text == '"') std::fputc('"', out);
    std::fputc(*text, out);
  }
  std::fputc('"', out);
}

// Each call behind `first` or `before`, the innermost first.
void print_stack(FILE *out, const trace &of, uint32_t stack, const char *first, const char *before, int most) {
  for_each_frame(of, stack, [&](const trace_frame &frame) {
    FrameText text;
    frame_text(frame, text);
    if (most-- > 0) std::fprintf(out, "%s%s", std::exchange(first, before), text);
  });
}

uint32_t thread_of(const trace &of, const trace_event &event) {
  return of.threads == nullptr ? event.thread : static_cast<uint32_t>(of.threads[event.thread]);
}

void print_block(FILE *out, const trace &of, const trace_event &event, const WalkBlock &block) {
  const trace_event &alloc = *block.alloc;
  std::fprintf(out, "block %-7" PRIu32 " %14" PRIu64 " bytes  0x%-12" PRIx64 "  device %d %-7s %s, stream 0x%" PRIx64,
               event.block, alloc.size, alloc.address, alloc.device, kind_text(alloc.kind), tag_name(of, alloc.tag),
               of.streams[event.stream]);
  if (block.name[0] != '\0') std::fprintf(out, ", \"%s\"", block.name);
}

void print_operation(FILE *out, const trace &of, const trace_event &event) {
  const double us = static_cast<double>(event.time - event.began) / 1000;
  const auto bytes = static_cast<double>(event.size);
  const char *tag = operation_tag(of, event);
  std::fprintf(out, "%s%s%.1f MiB in %.0f us", tag, *tag != '\0' ? ": " : "", bytes / kMib, us);
  if (us > 0 && event.size != 0) std::fprintf(out, ", %.1f GB/s", bytes / us / 1000);
  if (event.type == TRACE_COMPACT) std::fprintf(out, ", %.1f MiB went back", static_cast<double>(event.value) / kMib);
  if (event.type == TRACE_MOVE)
    std::fprintf(out, " of 0x%" PRIx64 " to device %d", event.address, static_cast<gmm_device>(event.value));
}

void print_event(FILE *out, const Walk &walk) {
  const trace &of = walk.of();
  const trace_event &event = walk.event();
  std::fprintf(out, "%13.6f %8" PRIu32 "  %-12s ", static_cast<double>(walk.time(event.time)) / 1e9,
               thread_of(of, event), event_name(event));
  if (walk.block() != nullptr) {
    print_block(out, of, event, *walk.block());
  } else if (event.type == TRACE_HELD) {
    std::fprintf(out,
                 "heap %-4" PRIu64 "     %14" PRIu64 " bytes from the driver, %" PRIu64 " paused  device %d %-7s %s",
                 event.address, event.size, event.value, event.device, kind_text(event.kind), tag_name(of, event.tag));
  } else if (event.type == TRACE_FAILED) {
    std::fprintf(out, "%s: %s", gmm_result_name(event.result), of.texts[event.value]);
  } else if (is_operation(event)) {
    print_operation(out, of, event);
  }
  print_stack(out, of, event.stack, kNextLine, kNextLine, kMostFrames);
  std::fputc('\n', out);
}

void print_row(FILE *out, const Walk &walk) {
  const trace &of = walk.of();
  const trace_event &event = walk.event();
  const WalkBlock *block = walk.block();
  const trace_event &place = block != nullptr ? *block->alloc : event;
  const bool has_failed = event.type == TRACE_FAILED,
             has_more = event.type == TRACE_HELD || event.type == TRACE_COMPACT;
  char number[16] = "", device[16] = "", stream[24] = "";
  if (block != nullptr) std::snprintf(number, sizeof number, "%" PRIu32, event.block);
  if (block != nullptr) std::snprintf(stream, sizeof stream, "0x%" PRIx64, of.streams[event.stream]);
  if (place.kind != GMM_KIND_UNSPECIFIED) std::snprintf(device, sizeof device, "%d", place.device);
  std::fprintf(out,
               "%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%s,%s,0x%" PRIx64 ",%" PRIu64 ",%" PRIu64 ",%s,%s,",
               of.process, walk.time(event.time), event.time - event.began, thread_of(of, event), event_name(event),
               number, place.address, place.size, has_more ? event.value : 0, kind_text(place.kind), device);
  print_quoted(out, tag_name(of, place.tag));
  std::fprintf(out, ",%s,", stream);
  print_quoted(out, block != nullptr ? block->name : "");
  std::fprintf(out, ",%s,", has_failed ? gmm_result_name(event.result) : "");
  print_quoted(out, has_failed ? of.texts[event.value] : "");
  std::fputs(",\"", out);
  print_stack(out, of, event.stack, "", "; ", INT_MAX);
  std::fprintf(out, "\",%" PRIu64 "\n", event.stack != 0 && event.type == TRACE_ALLOC ? event.value : 0);
}

}  // namespace

void view_text(const view_input *input, FILE *out) {
  std::fprintf(out, "%13s %8s  event\n", "seconds", "thread");
  for (uint32_t i = 0; i < input->count; ++i) {
    if (input->count > 1)
      std::fprintf(out, "process %" PRIu32 ", %s\n", input->traces[i].process, input->traces[i].file);
    for_each_event(*input, i, [&](const Walk &walk) { print_event(out, walk); });
  }
}

void view_plain(const view_input *input, FILE *out) {
  for (uint32_t i = 0; i < input->count; ++i)
    for_each_event(*input, i, [&](const Walk &walk) {
      const trace_event &event = walk.event();
      const uint64_t stream = walk.of().streams[event.stream];
      if (event.type == TRACE_ALLOC)
        std::fprintf(out, "a %" PRIu32 " %" PRIu64 " %" PRIu64 "\n", event.block, event.size, stream);
      else if (event.type == TRACE_FREE)
        std::fprintf(out, "f %" PRIu32 " %" PRIu64 "\n", event.block, stream);
    });
}

void view_csv(const view_input *input, FILE *out) {
  std::fputs(
      "process,time_ns,duration_ns,thread,event,block,address,bytes,more_bytes,kind,device,tag,stream,name,"
      "result,message,stack,stack_bytes\n",
      out);
  for (uint32_t i = 0; i < input->count; ++i)
    for_each_event(*input, i, [&](const Walk &walk) { print_row(out, walk); });
}
