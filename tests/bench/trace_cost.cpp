// SPDX-License-Identifier: Apache-2.0
// What a recorded event adds to the call that it records: short samples with and without a trace, one after the other.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "clock.h"
#include "commands.h"

namespace gmm_bench {
namespace {

constexpr uint64_t kPairs = 10000;  // a sample: 0.4 ms, in which a buffer is full four times
constexpr uint64_t kKept = 2000;    // blocks that live at once, in the second shape

bool good(gmm_result result) {
  if (result >= 0) return true;
  std::fprintf(stderr, "gmm-bench: trace: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
  return false;
}

// A pair after the other; or many allocs, then their frees: events of blocks that were not touched a moment ago.
struct Shape {
  const char *name;
  uint64_t live;
};
constexpr Shape kShapes[] = {{"pair", 1}, {"live 2000", kKept}};

class Cost {
 public:
  ~Cost() {
    if (heap_ != nullptr) good(gmm_heap_destroy(heap_));
    if (context_ != nullptr) good(gmm_context_release(context_));
  }
  bool open(const Run &run, uint32_t kind) {
    gmm_context_desc context = {};
    context.struct_size = sizeof context;
    context.backend = run.platform.backend;
    context.host_memory = run.options.host_memory;
    gmm_heap_desc heap = {};
    heap.struct_size = sizeof heap;
    heap.kind = kind;
    heap.device = run.options.device;
    return good(gmm_context_create(&context, &context_)) && good(gmm_heap_create(context_, &heap, &heap_));
  }
  // Nanoseconds of a pair.
  bool sample(uint64_t size, const Shape &shape, double *out) {
    std::vector<void *> &blocks = blocks_;
    blocks.resize(shape.live);
    gmm_result worst = GMM_OK;
    const uint64_t start = now();
    for (uint64_t done = 0; done < kPairs; done += shape.live) {
      for (uint64_t i = 0; i < shape.live; ++i)
        worst = std::min(worst, gmm_heap_alloc(heap_, size, 0, 0, 0, &blocks[i]));
      for (uint64_t i = 0; i < shape.live; ++i) worst = std::min(worst, gmm_free(context_, blocks[i], 0));
    }
    *out = static_cast<double>(now() - start) / kPairs;
    return good(worst);
  }
  bool measure(const std::string &path, uint64_t size, const Shape &shape, uint32_t samples, std::vector<double> *off,
               std::vector<double> *on) {
    double ignored = 0;
    for (uint32_t i = 0; i < samples; ++i) {
      if (!sample(size, shape, &ignored) || !sample(size, shape, &off->emplace_back())) return false;
      // The thread's first events make its buffer.
      if (!good(gmm_trace_begin(context_, path.c_str())) || !sample(size, shape, &ignored) ||
          !sample(size, shape, &on->emplace_back()) || !good(gmm_trace_end(context_)))
        return false;
    }
    return true;
  }

 private:
  gmm_context *context_ = nullptr;
  gmm_heap *heap_ = nullptr;
  std::vector<void *> blocks_;
};

double share(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

struct Target {
  std::string path, name;
  bool made = false;
};

std::vector<Target> targets(const Run &run) {
  std::vector<Target> out;
  for (const std::string &path : run.options.files) out.push_back({path, path});
  if (!out.empty()) return out;
  out.push_back({"/dev/null", "/dev/null"});
  for (const char *folder : {"/dev/shm", "/tmp"}) {
    std::string path = std::string(folder) + "/gmm-bench-XXXXXX";
    const int fd = mkstemp(path.data());
    if (fd < 0) {
      std::fprintf(stderr, "gmm-bench: warning: left out: no file can be made in %s\n", folder);
      continue;
    }
    close(fd);
    out.push_back({path, folder, true});
  }
  return out;
}

bool rows_of(const Run &run, const Target &target, uint32_t kind, uint64_t size, std::vector<Row> *rows) {
  for (const Shape &shape : kShapes) {
    Cost cost;
    std::vector<double> off, on;
    if (!cost.open(run, kind) ||
        !cost.measure(target.path, size, shape, run.options.samples != 0 ? run.options.samples : 301, &off, &on))
      return false;
    Row row;
    row.bench = run.options.command;
    row.subject = "gmm-heap";
    row.backend = run.platform.backend_name;
    row.device = run.platform.device_name;
    row.kind = kind;
    row.size = size;
    row.ns = (median(on) - median(off)) / 2;
    row.words = {{"file", target.name}, {"shape", shape.name}};
    row.numbers = {{"pair_off_ns", median(off)},
                   {"pair_on_ns", median(on)},
                   {"event_p10_ns", (share(on, 0.1) - share(off, 0.1)) / 2},
                   {"event_p90_ns", (share(on, 0.9) - share(off, 0.9)) / 2}};
    rows->push_back(row);
  }
  return true;
}

}  // namespace

ExitCode run_trace(const Run &run) {
  const std::vector<uint32_t> kinds =
      !run.options.kinds.empty() ? run.options.kinds
                                 : std::vector<uint32_t>{run.platform.has_vmm() ? GMM_BENCH_VMM : GMM_BENCH_DEVICE};
  const std::vector<uint64_t> sizes = run.options.sizes.empty() ? std::vector<uint64_t>{1024} : run.options.sizes;
  std::vector<Row> rows;
  bool all = true;
  print_head(run);
  for (const Target &target : targets(run)) {
    for (const uint32_t kind : kinds)
      for (const uint64_t size : sizes) all = all && rows_of(run, target, kind, size, &rows);
    if (target.made) unlink(target.path.c_str());
  }
  if (!all) return kFailed;
  if (run.options.json) {
    for (const Row &row : rows) print_json(row);
    return kGood;
  }
  std::printf("\nan event's cost: half of what a pair takes longer with a trace; medians\n");
  Table table(4);
  table.add({"file", "shape", "kind", "size", "pair off", "pair on", "an event", "p10", "p90"});
  for (const Row &row : rows)
    table.add({row.words[0].second, row.words[1].second, kind_name(row.kind), size_text(*row.size),
               time_text(row.numbers[0].second), time_text(row.numbers[1].second), time_text(*row.ns),
               time_text(row.numbers[2].second), time_text(row.numbers[3].second)});
  table.print();
  return kGood;
}

}  // namespace gmm_bench
