// SPDX-License-Identifier: Apache-2.0
// Any bytes as a trace: refused, or events that make sense, which a replay relies on.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "standalone.h"
extern "C" {
#include "cli/trace.h"
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const int file = memfd_create("trace", 0);
  if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  trace read = {};
  const bool good = trace_read(path, &read) != 0;
  close(file);
  if (!good) return 0;
  if (read.blocks == 0 || read.block_count == 0 || read.thread_count == 0 || read.streams[0] != 0) std::abort();
  for (uint32_t i = 0; i < read.name_count; ++i)
    if (strnlen(read.names[i], TRACE_NAME_BYTES) == TRACE_NAME_BYTES) std::abort();
  for (uint32_t i = 0; i < read.stack_frame_count; ++i)
    if (read.stack_frames[i] >= read.frame_count) std::abort();
  for (uint32_t i = 0; i < read.frame_count; ++i)
    if (read.frames[i].module >= read.module_count && read.frames[i].module != TRACE_NO_FRAME) std::abort();
  std::vector<uint64_t> live(read.block_count);
  uint64_t sum = 0, peak = 0;
  for (uint64_t i = 0; i < read.count; ++i) {
    const trace_event &step = read.events[i];
    if (step.stream >= read.stream_count || step.thread >= read.thread_count || step.tag >= read.tag_count)
      std::abort();
    if (step.stack >= read.stack_count) std::abort();
    const trace_stack &stack = read.stacks[step.stack];
    if (stack.first > read.stack_frame_count || stack.count > read.stack_frame_count - stack.first) std::abort();
    if (step.block == TRACE_NO_BLOCK) continue;
    if (step.block >= read.block_count) std::abort();
    if ((step.type == TRACE_ALLOC) != (live[step.block] == 0)) std::abort();
    if (step.type == TRACE_BLOCK_NAME && step.value >= read.name_count) std::abort();
    if (step.type == TRACE_USE || step.type == TRACE_BLOCK_NAME) continue;
    if ((step.type == TRACE_ALLOC) != (step.size != 0)) std::abort();
    sum += step.size - live[step.block];
    live[step.block] = step.size;
    if (sum > peak) peak = sum;
  }
  if (peak != read.peak_requested) std::abort();
  trace_free(&read);
  return 0;
}
