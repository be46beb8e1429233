// SPDX-License-Identifier: Apache-2.0
// Any bytes as a trace: refused, or operations that make sense, which a replay relies on.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "standalone.h"
extern "C" {
#include "cli/trace.h"
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  trace read = {};
  if (trace_parse("fuzz", data, size, &read) == 0) return 0;
  if (read.count == 0 || read.block_count == 0 || read.stream_count == 0 || read.thread_count == 0 ||
      read.streams[0] != 0)
    std::abort();
  for (uint32_t i = 0; i < read.name_count; ++i)
    if (std::strlen(read.names[i].text) >= sizeof read.names[i].text) std::abort();
  std::vector<uint64_t> live(read.block_count);
  uint64_t sum = 0, peak = 0;
  for (uint64_t i = 0; i < read.count; ++i) {
    const operation &step = read.operations[i];
    const uint32_t streams = step.what == OPERATION_NAME ? read.name_count : read.stream_count;
    if (step.block >= read.block_count || step.stream >= streams || step.thread >= read.thread_count ||
        step.place >= read.place_count)
      std::abort();
    if ((step.what == OPERATION_ALLOC) != (step.size != 0) || step.what > OPERATION_NAME) std::abort();
    if ((step.what == OPERATION_ALLOC) != (live[step.block] == 0)) std::abort();
    if (step.what == OPERATION_USE || step.what == OPERATION_NAME) continue;
    sum += step.size - live[step.block];
    live[step.block] = step.size;
    if (sum > peak) peak = sum;
  }
  if (peak != read.peak_requested) std::abort();
  trace_free(&read);
  return 0;
}
