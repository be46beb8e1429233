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

uint64_t size_of(const operation &one) { return one.what == OPERATION_USE ? GMM_BENCH_USE : one.size; }

struct Loaded {
  std::string name;
  std::vector<std::vector<gmm_bench_operation>> threads;
  uint64_t operations = 0;
  uint32_t blocks = 0, streams = 0;
  uint64_t peak_requested = 0;
};

std::string name_of(const std::string &path) {
  const std::string file = std::filesystem::path(path).filename().string();
  return file.substr(0, file.find('.'));
}

// Each recorded thread's operations. A block's number is used once, and each operation on it waits for the one before
// when that is another thread's.
void split(const trace &read, Loaded *out) {
  struct Last {
    uint32_t number, thread, done;
  };
  std::vector<Last> last(read.block_count);
  out->threads.resize(read.thread_count);
  for (uint64_t i = 0; i < read.count; ++i) {
    const operation &one = read.operations[i];
    if (one.what == OPERATION_NAME) continue;
    auto &own = out->threads[one.thread];
    gmm_bench_operation operation = {size_of(one), 0, one.stream, 0, 0};
    Last &before = last[one.block];
    if (one.what == OPERATION_ALLOC) {
      before.number = out->blocks++;
    } else if (before.thread != one.thread) {
      operation.thread = before.thread;
      operation.done = before.done;
    }
    operation.block = before.number;
    own.push_back(operation);
    before.thread = one.thread;
    before.done = static_cast<uint32_t>(own.size());
  }
}

bool load(const std::string &path, bool threads, Loaded *out) {
  trace read = {};
  if (trace_read(path.c_str(), &read) == 0) return false;
  out->name = name_of(path);
  out->streams = read.stream_count;
  out->operations = read.count;
  out->peak_requested = read.peak_requested;
  if (threads && read.thread_count > 1) {
    split(read, out);
  } else {
    out->blocks = read.block_count;
    auto &own = out->threads.emplace_back();
    for (uint64_t i = 0; i < read.count; ++i) {
      const operation &one = read.operations[i];
      if (one.what != OPERATION_NAME) own.push_back({size_of(one), one.block, one.stream, 0, 0});
    }
  }
  trace_free(&read);
  return true;
}

// One subject and kind on one trace.
class Player {
 public:
  Player(const Run &run, const Loaded &trace, Workers *workers)
      : run_(run), trace_(trace), workers_(workers), blocks_(trace.blocks), sizes_(trace.blocks) {}

  bool open(const gmm_bench_subject &subject, uint32_t kind) {
    return instance_.open(subject, kind, trace_.streams, workers_, count(), run_.options, run_.platform);
  }

  uint32_t count() const { return static_cast<uint32_t>(trace_.threads.size()); }

  // All operations once; `peak` when it shall be looked for.
  bool pass(uint64_t *peak, double *ns) {
    std::vector<uint64_t> progress(8 * trace_.threads.size());
    uint32_t failed = 0;
    const gmm_bench_replay shared = {blocks_.data(), sizes_.data(), peak, count() > 1 ? progress.data() : nullptr,
                                     &failed};
    bool good = true;
    const auto job = [&](uint32_t i) {
      const auto &own = trace_.threads[i];
      return instance_.subject().replay(instance_.thread(i), i, own.data(), own.size(), &shared) != 0;
    };
    const uint64_t time = workers_->run(count(), job, &good);
    *ns = static_cast<double>(time) / static_cast<double>(trace_.operations);
    return good;
  }

  // Frees what the trace left.
  bool clear() {
    bool good = true;
    workers_->run(
        1,
        [&](uint32_t) {
          for (size_t i = 0; i < blocks_.size(); ++i) {
            if (blocks_[i] == nullptr) continue;
            if (instance_.subject().deallocate(instance_.thread(0), blocks_[i], sizes_[i], 0) == 0) return false;
            blocks_[i] = nullptr;
          }
          return true;
        },
        &good);
    return good;
  }

  Instance &instance() { return instance_; }
  uint64_t calls() { return instance_.subject().backend_calls(instance_.state()); }

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
  uint64_t peak = subject.peak_reserved(player.instance().state());
  const uint64_t calls = player.calls();
  const bool counted = known(peak);
  for (uint32_t i = 0; i < (run.options.samples != 0 ? run.options.samples : 5) && good; ++i)
    good = player.clear() && player.pass(nullptr, &warm.emplace_back());
  const uint64_t calls_after = player.calls();
  const uint64_t peak_after = subject.peak_reserved(player.instance().state());
  good = good && player.clear();
  if (!good) return give_up(player.instance());

  Row row = row_of(run, player.instance());
  player.instance().close();
  if (!counted) {
    Player looking(run, trace, workers);
    double ignored = 0;
    peak = 0;
    if (!looking.open(subject, kind) || !looking.pass(&peak, &ignored) || !looking.clear())
      return give_up(looking.instance());
  }
  row.trace = trace.name;
  row.threads = player.count();
  row.ns = median(warm);
  if (peak != 0) row.reserved_over_requested = static_cast<double>(peak) / static_cast<double>(trace.peak_requested);
  if (known(calls)) row.handles = calls;
  row.words.emplace_back("peak_by", counted ? "counter" : peak != 0 ? "sampling" : "nothing");
  row.numbers = {{"first_ns", first},
                 {"operations", static_cast<double>(trace.operations)},
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

void print_rows(const std::vector<Row> &rows) {
  Table table(2);
  const std::vector<std::string> names = compared(rows);
  std::vector<std::string> head = {"subject",    "kind",       "peak requested", "peak reserved", "ratio",
                                   "warm ratio", "first pass", "warm",           "calls",         "warm calls"};
  for (const std::string &name : names) head.push_back("over " + name);
  table.add(head);
  for (const Row &row : rows) {
    std::vector<std::string> line = {
        row.subject,
        kind_name(row.kind),
        decimals(row.numbers[2].second / 0x1p20, 1) + " MiB",
        row.reserved_over_requested ? decimals(row.numbers[3].second / 0x1p20, 1) + " MiB" : "-",
        row.reserved_over_requested ? decimals(*row.reserved_over_requested, 4) : "-",
        row.numbers.back().first == "warm_over_requested" ? decimals(row.numbers.back().second, 4) : "-",
        time_text(row.numbers[0].second),
        time_text(*row.ns),
        row.handles ? std::to_string(*row.handles) : "-",
        row.handles ? decimals(row.numbers[4].second, 0) : "-"};
    for (const std::string &name : names) line.push_back(over_text(row, name));
    table.add(line);
  }
  table.print();
}

}  // namespace

ExitCode run_replay(const Run &run) {
  std::vector<uint32_t> kinds = run.options.kinds;
  if (kinds.empty()) kinds = {run.platform.has_vmm() ? GMM_BENCH_VMM : GMM_BENCH_DEVICE};
  // Every file is looked at before the first one runs.
  std::vector<Loaded> traces(run.options.files.size());
  for (size_t i = 0; i < traces.size(); ++i)
    if (!load(run.options.files[i], run.options.recorded_threads, &traces[i])) return kFailed;

  print_head(run);
  size_t most = 1;
  for (const Loaded &trace : traces) most = std::max(most, trace.threads.size());
  if (most > kMaxThreads) {
    std::fprintf(stderr, "gmm-bench: a trace of %zu threads; %u at most\n", most, kMaxThreads);
    return kFailed;
  }
  Workers workers(static_cast<uint32_t>(most));
  for (const Loaded &trace : traces) {
    std::vector<Row> rows;
    for (const gmm_bench_subject *subject : run.subjects)
      for (const uint32_t kind : kinds_of(*subject, kinds))
        if (!measure(run, trace, &workers, *subject, kind, &rows)) return kFailed;
    compare(&rows, [](const Row &, const Row &) { return true; });
    if (run.options.json) {
      for (const Row &row : rows) print_json(row);
    } else {
      std::printf("\n%s: %llu operations, %u streams, %zu threads; times are of one operation\n", trace.name.c_str(),
                  static_cast<unsigned long long>(trace.operations), trace.streams, trace.threads.size());
      print_rows(rows);
    }
    std::fflush(stdout);
  }
  return kGood;
}

}  // namespace gmm_bench
