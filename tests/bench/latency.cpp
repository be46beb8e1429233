// SPDX-License-Identifier: Apache-2.0
// How long single operations take: each allocation and each free of random blocks is timed by itself. The first pass
// begins with a fresh allocator, the second goes on with it.
//
// The machine adds times of its own: interrupts, other processes, a hypervisor. So a run repeats both passes with a
// fresh allocator and the same sequence, and an operation's time is its least of all repetitions: the allocator's work
// at this operation stays, and the machine's delays go. `once` are the times of the first repetition, without
// operations in which the system took the processor away (`switched`). The row `control`, whose operations are
// arithmetic, shows the machine alone.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "commands.h"
#include "random_blocks.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kPasses = 2;
constexpr double kParts[] = {0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999};
constexpr const char *kPartNames[] = {"p50", "p90", "p99", "p999", "p9999", "p99999"};
constexpr uint32_t kMostSlow = 1'000;  // ns; `within_us` is the part of the operations that take at most this

uint64_t switches() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_nvcsw) + static_cast<uint64_t>(usage.ru_nivcsw);
}

constexpr uint32_t kSwitched = UINT32_MAX;  // no time

struct Pass {
  std::vector<uint32_t> least = {}, once = {};  // ns, by operation
  uint64_t switched = 0, calls = 0;
};

// One operation. Asking for switches costs a call of the system, so only slow operations ask, and every 256th of all:
// a switch between two operations would excuse the next slow one.
class Clock {
 public:
  explicit Clock(std::vector<uint32_t> *times) : times_(times), seen_(switches()) {}
  template <typename Fn>
  void time(Fn fn) {
    const uint64_t begin = now();
    fn();
    uint64_t took = now() - begin;
    if (took > kMostSlow || times_->size() % 256 == 0) {
      const uint64_t before = seen_;
      seen_ = switches();
      if (took > kMostSlow && seen_ != before) took = kSwitched;
    }
    times_->push_back(static_cast<uint32_t>(std::min<uint64_t>(took, kSwitched)));
  }

 private:
  std::vector<uint32_t> *times_;
  uint64_t seen_;
};

struct Blocks {
  std::vector<void *> addresses;
  std::vector<uint64_t> sizes;
};

bool run_pass(Workers *workers, const Instance &instance, const std::vector<gmm_bench_operation> &operations,
              Blocks *blocks, Pass *pass) {
  const uint64_t calls = instance.allocator().backend_calls();
  std::vector<uint32_t> times;
  times.reserve(2 * operations.size());
  bool good = true;
  workers->run(
      1,
      [&](uint32_t) {
        gmm_bench_thread &thread = instance.thread(0);
        Clock clock(&times);
        for (const gmm_bench_operation &operation : operations) {
          void *&block = blocks->addresses[operation.block];
          uint64_t &size = blocks->sizes[operation.block];
          bool freed = true;
          if (block != nullptr) clock.time([&] { freed = thread.deallocate(block, size, 0); });
          size = operation.size;
          clock.time([&] { block = thread.allocate(size, 0); });
          if (!freed || block == nullptr) return false;
        }
        return true;
      },
      &good);
  if (!good) return false;
  if (pass->least.empty()) {
    pass->calls = instance.allocator().backend_calls() - calls;
    pass->least = pass->once = times;
    pass->switched = static_cast<uint64_t>(std::count(times.begin(), times.end(), kSwitched));
  }
  for (size_t i = 0; i < times.size(); ++i) pass->least[i] = std::min(pass->least[i], times[i]);
  return true;
}

// Both passes with a fresh allocator. One is open at a time: the pages of others would take the processor's caches.
bool repeat(const Run &run, const gmm_bench_subject &subject, uint32_t kind, Workers *workers,
            const std::vector<gmm_bench_operation> *operations, Pass *passes, Instance *instance) {
  if (!instance->open(subject, kind, 0, workers, 1, run.options)) return false;
  Blocks blocks = {std::vector<void *>(run.options.blocks), std::vector<uint64_t>(run.options.blocks)};
  bool good = true;
  for (uint32_t i = 0; i < kPasses && good; ++i)
    good = run_pass(workers, *instance, operations[i], &blocks, &passes[i]);
  workers->run(
      1,
      [&](uint32_t) {
        for (uint32_t i = 0; i < run.options.blocks; ++i)
          if (void *block = blocks.addresses[i]; block != nullptr)
            instance->thread(0).deallocate(block, blocks.sizes[i], 0);
        return true;
      },
      &good);
  return good;
}

// Of ascending times.
uint32_t at(const std::vector<uint32_t> &times, double part) {
  return times[std::min(times.size() - 1, static_cast<size_t>(part * static_cast<double>(times.size())))];
}
double within(const std::vector<uint32_t> &times) {
  return static_cast<double>(std::upper_bound(times.begin(), times.end(), kMostSlow) - times.begin()) /
         static_cast<double>(times.size());
}

Row make_row(const Run &run, const gmm_bench_subject &subject, uint32_t kind, uint32_t index, Pass *pass, bool counts,
             uint64_t peak) {
  for (auto *times : {&pass->least, &pass->once}) {
    std::erase(*times, kSwitched);
    std::sort(times->begin(), times->end());
  }
  Row row = row_of(run, subject.name, kind);
  row.ns = std::max(1u, at(pass->least, 0.5));
  if (counts) row.handles = pass->calls;
  row.words.emplace_back("pass", index == 0 ? "first" : "second");
  for (size_t i = 0; i < std::size(kParts); ++i) row.numbers.emplace_back(kPartNames[i], at(pass->least, kParts[i]));
  row.numbers.emplace_back("max", pass->least.back());
  row.numbers.emplace_back("within_us", within(pass->least));
  row.numbers.emplace_back("once_p9999", at(pass->once, 0.9999));
  row.numbers.emplace_back("once_max", pass->once.back());
  row.numbers.emplace_back("once_within_us", within(pass->once));
  row.numbers.emplace_back("operations", static_cast<double>(pass->least.size()));
  row.numbers.emplace_back("switched", static_cast<double>(pass->switched));
  row.numbers.emplace_back("peak_requested", static_cast<double>(peak));
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
        rows.push_back(make_row(run, *subject, kind, i, &measured[i], counts, sequence.peak()));
    }
  }
  print_rows(run, "", rows);
  return kGood;
}

}  // namespace gmm_bench
