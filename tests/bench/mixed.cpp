// SPDX-License-Identifier: Apache-2.0
// Blocks of many sizes, replaced at random one after the other: the time, and the memory held.
#include <algorithm>

#include "commands.h"
#include "random_blocks.h"

namespace gmm_bench {
namespace {

struct MixedCell {
  Instance *instance;
  Player player;
  std::vector<double> samples = {};
  uint64_t peak = 0, calls = 0;
  bool gone = false;
};

// Runs the operations and reads the memory that is held after them. Timed are pairs of a free and an allocation.
bool measure(const std::vector<gmm_bench_operation> &operations, bool timed, MixedCell *cell) {
  gmm_bench_allocator &allocator = cell->instance->allocator();
  const uint64_t calls = allocator.backend_calls();
  double time = 0;
  if (!cell->player.play(operations, &time)) return false;
  if (const uint64_t now = allocator.reserved(); known(now)) cell->peak = std::max(cell->peak, now);
  if (!timed) return true;
  cell->calls += allocator.backend_calls() - calls;
  cell->samples.push_back(time / static_cast<double>(operations.size() / 2));
  return true;
}

Row make_row(const Run &run, const MixedCell &cell, uint64_t peak_requested) {
  Row row = row_of(run, cell.instance->name(), cell.instance->kind());
  row.ns = median(cell.samples);
  row.samples = cell.samples;
  const uint64_t own_peak = cell.instance->allocator().peak_reserved();
  row.set_peak(known(own_peak) ? own_peak : cell.peak, known(own_peak), peak_requested);
  if (known(cell.instance->allocator().backend_calls())) row.handles = cell.calls;
  row.numbers.emplace_back("blocks", run.options.blocks);
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
  for (Instance &instance : instances) cells.push_back({&instance, Player(&instance, &workers, options.blocks)});

  RandomBlocks sequence(options);
  const uint64_t count = options.iterations != 0 ? options.iterations : 1024;
  const uint32_t samples = options.samples != 0 ? options.samples : 60;
  const uint32_t warm = samples / 4 + 1;
  for (uint32_t i = 0; i < 1 + warm + samples; ++i) {
    const auto operations = i == 0 ? sequence.fill() : sequence.next(count);
    for (MixedCell &cell : cells) {
      if (cell.gone || measure(operations, i > warm, &cell)) continue;
      cell.gone = true;
      if (!give_up(*cell.instance)) return kFailed;
    }
  }
  std::vector<Row> rows;
  for (const MixedCell &cell : cells)
    if (!cell.gone) rows.push_back(make_row(run, cell, sequence.peak()));
  compare(&rows, [](const Row &, const Row &) { return true; });
  for (MixedCell &cell : cells)
    if (!cell.player.clear() && !give_up(*cell.instance)) return kFailed;
  print_rows(run, "", rows);
  return kGood;
}

}  // namespace gmm_bench
