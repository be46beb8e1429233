// SPDX-License-Identifier: Apache-2.0
// How long single operations take: each allocation and each free of random blocks is timed by itself. The first pass
// begins with a fresh allocator, the second goes on with it.
//
// The machine adds times of its own: interrupts, other processes, a hypervisor. So a run repeats both passes with a
// fresh allocator and the same sequence, and an operation's time is its least of all repetitions: the allocator's work
// at this operation stays, and the machine's delays go. The row `control`, whose operations are arithmetic, shows the
// machine alone.
#include <algorithm>

#include "commands.h"
#include "random_blocks.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kPasses = 2;
constexpr double kParts[] = {0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999};
constexpr const char *kPartNames[] = {"p50", "p90", "p99", "p999", "p9999", "p99999"};
constexpr uint32_t kMostSlow = 1'000;  // ns; `within_us` is the part of the operations that take at most this

struct Pass {
  std::vector<uint32_t> least = {};  // ns, by operation
  uint64_t calls = 0;
};

bool run_pass(Instance *instance, Player *player, const std::vector<gmm_bench_operation> &operations, Pass *pass) {
  const uint64_t calls = instance->allocator().backend_calls();
  std::vector<uint32_t> times;
  times.reserve(operations.size());
  double ignored = 0;
  if (!player->play(operations, &ignored, nullptr, &times)) return false;
  if (pass->least.empty()) {
    pass->calls = instance->allocator().backend_calls() - calls;
    pass->least = times;
  }
  for (size_t i = 0; i < times.size(); ++i) pass->least[i] = std::min(pass->least[i], times[i]);
  return true;
}

// Both passes with a fresh allocator. One is open at a time: the pages of others would take the processor's caches.
bool repeat(const Run &run, const gmm_bench_subject &subject, uint32_t kind, Workers *workers,
            const std::vector<gmm_bench_operation> *operations, Pass *passes, Instance *instance) {
  if (!instance->open(subject, kind, 0, workers, 1, run.options)) return false;
  Player player(instance, workers, run.options.blocks);
  bool good = true;
  for (uint32_t i = 0; i < kPasses && good; ++i) good = run_pass(instance, &player, operations[i], &passes[i]);
  return player.clear() && good;
}

// Of ascending times.
uint32_t at(const std::vector<uint32_t> &times, double part) {
  return times[std::min(times.size() - 1, static_cast<size_t>(part * static_cast<double>(times.size())))];
}

Row make_row(const Run &run, const gmm_bench_subject &subject, uint32_t kind, uint32_t index, Pass *pass, bool counts) {
  std::vector<uint32_t> &times = pass->least;
  std::sort(times.begin(), times.end());
  Row row = row_of(run, subject.name, kind);
  row.ns = std::max(1u, at(times, 0.5));
  if (counts) row.handles = pass->calls;
  row.words.emplace_back("pass", index == 0 ? "first" : "second");
  for (size_t i = 0; i < std::size(kParts); ++i) row.numbers.emplace_back(kPartNames[i], at(times, kParts[i]));
  row.numbers.emplace_back("max", times.back());
  const auto within = std::upper_bound(times.begin(), times.end(), kMostSlow) - times.begin();
  row.numbers.emplace_back("within_us", static_cast<double>(within) / static_cast<double>(times.size()));
  row.numbers.emplace_back("operations", static_cast<double>(times.size()));
  return row;
}

}  // namespace

ExitCode run_latency(const Run &run) {
  const Options &options = run.options;
  const auto kinds = kinds_or(run, {GMM_BENCH_VMM, GMM_BENCH_DEVICE});
  RandomBlocks sequence(options);
  const uint64_t count = (options.iterations != 0 ? options.iterations : 1'000'000) / 2;
  std::vector<gmm_bench_operation> passes[kPasses];
  passes[0] = sequence.fill();
  for (auto &pass : passes) {
    const auto more = sequence.next(count);
    pass.insert(pass.end(), more.begin(), more.end());
  }
  // Half as much again for the gaps between blocks of many sizes.
  set_gmm_reserve(sequence.peak() / 100 * 150);

  const uint32_t samples = options.samples != 0 ? options.samples : 7;
  Workers workers(1);
  std::vector<Row> rows;
  for (const gmm_bench_subject *subject : run.subjects) {
    for (const uint32_t kind : kinds_of(*subject, kinds)) {
      Pass measured[kPasses];
      bool good = true, counts = false;
      for (uint32_t i = 0; i < samples && good; ++i) {
        Instance instance;
        good = repeat(run, *subject, kind, &workers, passes, measured, &instance);
        counts = good && known(instance.allocator().backend_calls());
        if (!good && !give_up(instance)) return kFailed;
      }
      for (uint32_t i = 0; i < kPasses && good; ++i)
        rows.push_back(make_row(run, *subject, kind, i, &measured[i], counts));
    }
  }
  print_rows(run, "", rows);
  return kGood;
}

}  // namespace gmm_bench
