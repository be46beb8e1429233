// SPDX-License-Identifier: Apache-2.0
// Blocks of many sizes, replaced at random one after the other: the time, and the memory held.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "commands.h"
#include "random_blocks.h"

namespace gmm_bench {
namespace {

struct MixedCell {
  Instance *instance;
  std::vector<double> samples = {}, steady = {};
  uint64_t peak = 0, calls = 0;
  bool gone = false;
};

// Runs the operations and reads the memory that is held after them.
bool measure(Workers *workers, const std::vector<gmm_bench_operation> &operations, uint64_t live, bool timed,
             MixedCell *cell) {
  gmm_bench_allocator &allocator = cell->instance->allocator();
  bool good = true;
  const uint64_t calls = allocator.backend_calls();
  const uint64_t time = workers->run(
      1, [&](uint32_t) { return cell->instance->thread(0).mixed(operations.data(), operations.size()); }, &good);
  if (!good) return false;
  const uint64_t now = allocator.reserved();
  if (known(now)) cell->peak = std::max(cell->peak, now);
  if (!timed) return true;
  if (known(now)) cell->steady.push_back(static_cast<double>(now) / static_cast<double>(live));
  cell->calls += allocator.backend_calls() - calls;
  cell->samples.push_back(static_cast<double>(time) / static_cast<double>(operations.size()));
  return true;
}

Row make_row(const Run &run, const MixedCell &cell, uint64_t peak_requested) {
  Row row = row_of(run, cell.instance->name(), cell.instance->kind());
  row.ns = median(cell.samples);
  row.samples = cell.samples;
  const uint64_t own_peak = cell.instance->allocator().peak_reserved();
  const uint64_t peak = known(own_peak) ? own_peak : cell.peak;
  if (peak != 0) row.reserved_over_requested = static_cast<double>(peak) / static_cast<double>(peak_requested);
  if (known(cell.instance->allocator().backend_calls())) row.handles = cell.calls;
  row.words.emplace_back("peak_by", known(own_peak) ? "counter" : peak != 0 ? "sampling" : "nothing");
  row.numbers.emplace_back("least_ns", *std::min_element(cell.samples.begin(), cell.samples.end()));
  row.numbers.emplace_back("blocks", run.options.blocks);
  row.numbers.emplace_back("peak_requested", static_cast<double>(peak_requested));
  row.numbers.emplace_back("peak_reserved", peak != 0 ? static_cast<double>(peak) : NAN);
  if (!cell.steady.empty()) row.numbers.emplace_back("steady", median(cell.steady));
  return row;
}

}  // namespace

ExitCode run_mixed(const Run &run) {
  const Options &options = run.options;
  const auto kinds = kinds_or(run, {GMM_BENCH_VMM, GMM_BENCH_DEVICE});
  Workers workers(1);
  std::deque<Instance> instances;
  if (!open_instances(run, kinds, &workers, 1, &instances)) return kFailed;
  std::deque<MixedCell> cells;
  for (Instance &instance : instances) cells.push_back({&instance, {}, {}});

  RandomBlocks sequence(options);
  const uint64_t count = options.iterations != 0 ? options.iterations : 1024;
  const uint32_t samples = options.samples != 0 ? options.samples : 60;
  const uint32_t warm = samples / 4 + 1;
  for (uint32_t i = 0; i < 1 + warm + samples; ++i) {
    const auto operations = i == 0 ? sequence.fill() : sequence.next(count);
    for (MixedCell &cell : cells) {
      if (cell.gone || measure(&workers, operations, sequence.live(), i > warm, &cell)) continue;
      cell.gone = true;
      if (!give_up(*cell.instance)) return kFailed;
    }
  }
  std::vector<Row> rows;
  for (const MixedCell &cell : cells)
    if (!cell.gone) rows.push_back(make_row(run, cell, sequence.peak()));
  compare(&rows, [](const Row &, const Row &) { return true; });
  for (MixedCell &cell : cells) {
    bool good = true;
    workers.run(
        1, [&](uint32_t) { return cell.instance->thread(0).mixed_clear(); }, &good);
    if (!good && !give_up(*cell.instance)) return kFailed;
  }

  print_rows(run, "", rows);
  return kGood;
}

}  // namespace gmm_bench
