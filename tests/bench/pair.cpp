// SPDX-License-Identifier: Apache-2.0
// The price of one alloc and free: over sizes, kinds and threads, and from one thread to another.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "commands.h"

namespace gmm_bench {
namespace {

constexpr uint64_t kReferenceSize = 1024;
constexpr const char *kReferenceName = "mimalloc-1k";
constexpr uint64_t kRingPlaces = 1024;
constexpr uint32_t kRingBatch = 64;

// The samples of one row.
struct PairCell {
  Instance *instance;
  uint64_t size;
  uint32_t threads;
  bool share = false;  // one thread allocates, another frees
  bool reference = false;
  uint64_t iterations = 0;
  std::vector<double> samples = {};
  uint64_t calls = 0;
  bool calls_known = true;
  bool gone = false;
};

// Wall time of `iterations` pairs on each thread (of all pairs, from one thread to the other).
bool measure(Workers *workers, const PairCell &cell, uint64_t iterations, double *ns) {
  bool good = true;
  uint64_t time = 0;
  if (!cell.share) {
    time = workers->run(
        cell.threads, [&](uint32_t i) { return cell.instance->thread(i).pair(cell.size, iterations); }, &good);
  } else {
    std::vector<void *> blocks(kRingPlaces);
    gmm_bench_ring ring = {blocks.data(), kRingPlaces - 1, kRingBatch, 0, 0, 0};
    time = workers->run(
        2,
        [&](uint32_t i) {
          return i == 0 ? cell.instance->thread(0).produce(cell.size, iterations, &ring)
                        : cell.instance->thread(1).consume(cell.size, iterations, 1, &ring);
        },
        &good);
  }
  *ns = static_cast<double>(time) / static_cast<double>(iterations);
  return good;
}

// Warms the caches up and finds how many pairs fill a sample.
bool calibrate(Workers *workers, const Options &options, PairCell *cell) {
  double ns = 0;
  if (!measure(workers, *cell, 8, &ns)) return false;  // the driver's calls are not the cost of a pair
  if (options.iterations != 0) {
    cell->iterations = options.iterations;
    return true;
  }
  const double wanted = 1e3 * static_cast<double>(options.sample_us != 0 ? options.sample_us
                                                  : cell->threads > 1    ? 2000
                                                                         : 500);
  cell->iterations = 4;
  for (int step = 0; step < 40; ++step) {
    double again = 0;  // the less of two: one of them may have met a rare delay
    if (!measure(workers, *cell, cell->iterations, &ns) || !measure(workers, *cell, cell->iterations, &again))
      return false;
    const double part = std::min(ns, again) * static_cast<double>(cell->iterations) / wanted;
    if (part >= 0.5 && part <= 2) break;
    cell->iterations = static_cast<uint64_t>(static_cast<double>(cell->iterations) / std::clamp(part, 0.25, 16.0)) + 1;
    if (part > 2 && cell->iterations <= 2) break;
  }
  return true;
}

bool sample(Workers *workers, PairCell *cell) {
  const uint64_t before = cell->instance->allocator().backend_calls();
  double ns = 0;
  // The samples of the others were in between.
  if (!measure(workers, *cell, cell->iterations / 16 + 1, &ns)) return false;
  if (!measure(workers, *cell, cell->iterations, &ns)) return false;
  const uint64_t after = cell->instance->allocator().backend_calls();
  if (known(before) && known(after))
    cell->calls += after - before;
  else
    cell->calls_known = false;
  cell->samples.push_back(ns);
  return true;
}

// All cells of one size, sample by sample in turn. False when gmm failed.
bool measure_all(const Run &run, Workers *workers, std::deque<PairCell> *cells) {
  const auto drop = [](PairCell *cell) { return cell->gone = true, give_up(*cell->instance); };
  for (PairCell &cell : *cells)
    if (!calibrate(workers, run.options, &cell) && !drop(&cell)) return false;
  const uint32_t count = run.options.samples != 0 ? run.options.samples : 41;
  for (uint32_t i = 0; i < count; ++i)
    for (PairCell &cell : *cells)
      if (!cell.gone && !sample(workers, &cell) && !drop(&cell)) return false;
  return true;
}

const std::string &mode_of(const Row &row) { return row.words[0].second; }

Row make_row(const Run &run, const PairCell &cell) {
  Row row = row_of(run, cell.instance->name(), cell.instance->kind());
  row.size = cell.size;
  row.threads = cell.threads;
  row.ns = median(cell.samples);
  row.samples = cell.samples;
  if (cell.calls_known) row.handles = cell.calls;
  row.words.emplace_back("mode", cell.share ? "share" : "local");
  row.numbers.emplace_back("least_ns", *std::min_element(cell.samples.begin(), cell.samples.end()));
  row.numbers.emplace_back("samples", static_cast<double>(cell.samples.size()));
  row.numbers.emplace_back("iterations", static_cast<double>(cell.iterations));
  return row;
}

// The row of the subject and kind on one thread.
const Row *local_row(const std::vector<Row> &rows, const Row &row) {
  for (const Row &other : rows)
    if (other.subject == row.subject && other.kind == row.kind && other.threads == 1 && mode_of(other) == "local")
      return &other;
  return nullptr;
}

std::vector<Row> make_rows(const Run &run, const std::deque<PairCell> &cells) {
  std::vector<Row> rows;
  Row reference;
  for (const PairCell &cell : cells) {
    if (cell.gone) continue;
    if (cell.reference)
      reference = make_row(run, cell);
    else
      rows.push_back(make_row(run, cell));
  }
  compare(&rows, [](const Row &a, const Row &b) { return a.threads == b.threads && mode_of(a) == mode_of(b); });
  for (Row &row : rows) std::erase_if(row.over, [](auto &over) { return over.first == control_subject()->name; });
  for (Row &row : rows) {
    if (reference.ns && row.subject != control_subject()->name)
      row.over.emplace_back(kReferenceName, time_over(row, reference));
    const Row *local = local_row(rows, row);
    if (local == nullptr || local == &row) continue;
    if (mode_of(row) == "local")
      row.numbers.emplace_back("scaling", row.threads / time_over(row, *local));
    else
      row.numbers.emplace_back("over_local", time_over(row, *local));
  }
  return rows;
}

void add_cells(const Run &run, const std::vector<uint32_t> &threads, uint64_t size, std::deque<Instance> *instances,
               std::deque<PairCell> *cells) {
  const Options &options = run.options;
  for (Instance &instance : *instances) {
    for (const uint32_t count : threads) cells->push_back({&instance, size, count});
    if (&instance.subject() == control_subject()) continue;
    if (options.share) cells->push_back({&instance, size, 2, true});
  }
  if (options.iterations != 0) return;  // a run that counts instructions has these pairs alone
  for (Instance &instance : *instances)
    if (&instance.subject() == mimalloc_subject()) cells->push_back({&instance, kReferenceSize, 1, false, true});
}

}  // namespace

ExitCode run_pair(const Run &run) {
  const Options &options = run.options;
  const auto kinds = kinds_or(run, {GMM_BENCH_VMM, GMM_BENCH_DEVICE, GMM_BENCH_HOST, GMM_BENCH_MANAGED});
  std::vector<uint32_t> threads = options.threads;
  if (threads.empty()) threads = {1};
  if (options.share && std::find(threads.begin(), threads.end(), 1) == threads.end())
    threads.insert(threads.begin(), 1);
  std::vector<uint64_t> sizes = options.sizes;
  if (sizes.empty()) sizes = {512, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20};

  const uint32_t most = std::max(*std::max_element(threads.begin(), threads.end()), options.share ? 2u : 1u);
  Workers workers(most);
  std::deque<Instance> instances;  // ended before the workers
  if (!open_instances(run, kinds, &workers, most, &instances)) return kFailed;
  if (most > 1 && !instances.emplace_back().open(*control_subject(), GMM_BENCH_SYSTEM, 0, &workers, most, options))
    return kFailed;
  for (const uint64_t size : sizes) {
    std::deque<PairCell> cells;
    add_cells(run, threads, size, &instances, &cells);
    if (!measure_all(run, &workers, &cells)) return kFailed;
    print_rows(run, size_text(size), make_rows(run, cells));
  }
  return kGood;
}

}  // namespace gmm_bench
