// SPDX-License-Identifier: Apache-2.0
// Recorded allocations of real programs: the time of an operation, and how much is held at the peak.
#include <algorithm>
#include <cmath>
#include <cstdio>
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
  if (trace_read(path, &read) == 0) return 0;
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

// One subject and kind on one trace.
class Player {
 public:
  Player(const Run &run, const Loaded &trace, Workers *workers)
      : run_(run), trace_(trace), workers_(workers), blocks_(trace.blocks), sizes_(trace.blocks) {}

  bool open(const gmm_bench_subject &subject, uint32_t kind) {
    return instance_.open(subject, kind, trace_.streams, workers_, 1, run_.options);
  }

  // All operations once; `peak` when it shall be looked for.
  bool pass(uint64_t *peak, double *ns) {
    const gmm_bench_replay shared = {blocks_.data(), sizes_.data(), peak};
    bool good = true;
    const auto job = [&](uint32_t) {
      return instance_.thread(0).replay(trace_.operations.data(), trace_.operations.size(), shared);
    };
    const uint64_t time = workers_->run(1, job, &good);
    *ns = static_cast<double>(time) / static_cast<double>(trace_.operations.size());
    return good;
  }

  // Frees the blocks that the trace left.
  bool clear() {
    bool good = true;
    workers_->run(
        1,
        [&](uint32_t) {
          for (size_t i = 0; i < blocks_.size(); ++i) {
            if (blocks_[i] == nullptr) continue;
            if (!instance_.thread(0).deallocate(blocks_[i], sizes_[i], 0)) return false;
            blocks_[i] = nullptr;
          }
          return true;
        },
        &good);
    return good;
  }

  Instance &instance() { return instance_; }
  uint64_t calls() { return instance_.allocator().backend_calls(); }

 private:
  const Run &run_;
  const Loaded &trace_;
  Workers *workers_;
  Instance instance_;
  std::vector<void *> blocks_;
  std::vector<uint64_t> sizes_;
};

// A pass on empty caches, then some on warm ones; for a subject that does not count its peak one more from the
// beginning that looks.
bool measure(const Run &run, const Loaded &trace, Workers *workers, const gmm_bench_subject &subject, uint32_t kind,
             std::vector<Row> *rows) {
  Player player(run, trace, workers);
  double first = 0;
  std::vector<double> warm;
  bool good = player.open(subject, kind) && player.pass(nullptr, &first);
  if (!good) return give_up(player.instance());
  uint64_t peak = player.instance().allocator().peak_reserved();
  const uint64_t calls = player.calls();
  const bool counted = known(peak);
  for (uint32_t i = 0; i < (run.options.samples != 0 ? run.options.samples : 5) && good; ++i)
    good = player.clear() && player.pass(nullptr, &warm.emplace_back());
  const uint64_t calls_after = player.calls();
  const uint64_t peak_after = player.instance().allocator().peak_reserved();
  good = good && player.clear();
  if (!good) return give_up(player.instance());

  Row row = row_of(run, player.instance().name(), player.instance().kind());
  player.instance().close();
  if (!counted) {
    Player looking(run, trace, workers);
    double ignored = 0;
    peak = 0;
    if (!looking.open(subject, kind) || !looking.pass(&peak, &ignored) || !looking.clear())
      return give_up(looking.instance());
  }
  row.trace = trace.name;
  row.ns = median(warm);
  if (peak != 0) row.reserved_over_requested = static_cast<double>(peak) / static_cast<double>(trace.peak_requested);
  if (known(calls)) row.handles = calls;
  row.words.emplace_back("peak_by", counted ? "counter" : peak != 0 ? "sampling" : "nothing");
  row.numbers = {{"first_ns", first},
                 {"operations", static_cast<double>(trace.operations.size())},
                 {"peak_requested", static_cast<double>(trace.peak_requested)},
                 {"peak_reserved", peak != 0 ? static_cast<double>(peak) : NAN}};
  if (known(calls))
    row.numbers.emplace_back("handles_warm",
                             static_cast<double>(calls_after - calls) / static_cast<double>(warm.size()));
  if (counted)
    row.numbers.emplace_back("warm_over_requested",
                             static_cast<double>(peak_after) / static_cast<double>(trace.peak_requested));
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
