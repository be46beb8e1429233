// SPDX-License-Identifier: Apache-2.0
// Recorded allocations of real programs: the time of an operation, and how much is held at the peak.
#include <filesystem>

#include "commands.h"
extern "C" {
#include "cli/trace.h"
}

namespace gmm_bench {
namespace {

struct Loaded {
  std::string name;
  std::vector<gmm_bench_operation> operations;
  uint32_t blocks = 0, streams = 0;
  uint64_t peak_requested = 0;
};
using Traces = std::vector<Loaded>;

std::string name_of(const std::string &path) {
  const std::string file = std::filesystem::path(path).filename().string();
  return file.substr(0, file.find('.'));
}

int load_one(void *traces, const char *path) {
  trace read = {};
  if (trace_read(path, &read) == 0 || read.blocks == 0) return 0;
  Loaded &out = static_cast<Traces *>(traces)->emplace_back();
  out.name = name_of(path);
  out.streams = read.stream_count;
  out.blocks = read.block_count;
  out.peak_requested = read.peak_requested;
  for (uint64_t i = 0; i < read.count; ++i) {
    const trace_event &one = read.events[i];
    if (one.type == TRACE_ALLOC || one.type == TRACE_FREE) out.operations.push_back({one.size, one.block, one.stream});
    if (one.type == TRACE_USE) out.operations.push_back({GMM_BENCH_USE, one.block, one.stream});
  }
  trace_free(&read);
  return 1;
}

// A pass on empty caches, then some on warm ones; for a subject that does not count its peak one more from the
// beginning that looks.
bool measure(const Run &run, const Loaded &trace, Workers *workers, const gmm_bench_subject &subject, uint32_t kind,
             std::vector<Row> *rows) {
  const auto open = [&](Instance *instance) {
    return instance->open(subject, kind, trace.streams, workers, 1, run.options);
  };
  const uint32_t samples = run.options.samples != 0 ? run.options.samples : 5;
  const auto count = static_cast<double>(trace.operations.size());
  std::vector<double> times;
  uint64_t peak = 0, calls = 0;
  {
    Instance instance;
    Player player(&instance, workers, trace.blocks);
    if (!open(&instance)) return give_up(instance);
    for (uint32_t i = 0; i < 1 + samples; ++i) {
      if (!player.play(trace.operations, &times.emplace_back())) return give_up(instance);
      if (i == 0) peak = instance.allocator().peak_reserved(), calls = instance.allocator().backend_calls();
      if (!player.clear()) return give_up(instance);
      times.back() /= count;
    }
  }
  const bool is_counted = known(peak);
  if (!is_counted) {
    Instance instance;
    Player player(&instance, workers, trace.blocks);
    double ignored = peak = 0;
    if (!open(&instance) || !player.play(trace.operations, &ignored, &peak) || !player.clear())
      return give_up(instance);
  }
  Row row = row_of(run, subject.name, kind);
  row.trace = trace.name;
  row.numbers = {{"first_ns", times[0]}, {"operations", count}};
  times.erase(times.begin());
  row.ns = median(times);
  row.set_peak(peak, is_counted, trace.peak_requested);
  if (known(calls)) row.handles = calls;
  rows->push_back(row);
  return true;
}

}  // namespace

ExitCode run_replay(const Run &run) {
  const auto kinds = kinds_or(run, {run.platform.has_vmm() ? GMM_BENCH_VMM : GMM_BENCH_DEVICE});
  // Every file is read before the first one runs.
  Traces traces;
  for (const std::string &path : run.options.files)
    if (trace_each(path.c_str(), load_one, &traces) == 0) return kFailed;

  Workers workers(1);
  for (const Loaded &trace : traces) {
    std::vector<Row> rows;
    for (const gmm_bench_subject *subject : run.subjects)
      for (const uint32_t kind : kinds_of(*subject, kinds))
        if (!measure(run, trace, &workers, *subject, kind, &rows)) return kFailed;
    compare(&rows, [](const Row &, const Row &) { return true; });
    print_rows(run, trace.name, rows);
  }
  return kGood;
}

}  // namespace gmm_bench
