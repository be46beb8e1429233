// SPDX-License-Identifier: Apache-2.0
#include "commands.h"

#include <algorithm>
#include <cstdio>

namespace gmm_bench {

bool open_instances(const Run &run, const std::vector<uint32_t> &kinds, Workers *workers, uint32_t threads,
                    std::deque<Instance> *out) {
  bool wanted = false, there = false;
  for (const gmm_bench_subject *subject : run.subjects) {
    wanted = wanted || is_gmm(*subject);
    for (const uint32_t kind : kinds_of(*subject, kinds)) {
      Instance &instance = out->emplace_back();
      if (instance.open(*subject, kind, 0, workers, threads, run.options, run.platform)) {
        there = there || is_gmm(*subject);
        continue;
      }
      std::fprintf(stderr, "gmm-bench: warning: left out: %s\n", instance.error().c_str());
      out->pop_back();
    }
  }
  if (wanted && !there) std::fprintf(stderr, "gmm-bench: gmm could be opened with none of the kinds\n");
  if (!wanted && out->empty()) std::fprintf(stderr, "gmm-bench: no subject is left\n");
  return wanted ? there : !out->empty();
}

bool give_up(const Instance &instance) {
  const bool peer = !is_gmm(instance.subject());
  std::fprintf(stderr, "gmm-bench: %s%s\n", peer ? "warning: left out: " : "", instance.error().c_str());
  return peer;
}

Row row_of(const Run &run, const Instance &instance) {
  Row row;
  row.bench = run.options.command;
  row.subject = instance.name();
  row.backend = run.platform.backend_name;
  row.device = run.platform.device_name;
  row.kind = instance.kind();
  return row;
}

void compare(std::vector<Row> *rows, const std::function<bool(const Row &, const Row &)> &comparable) {
  for (Row &row : *rows) {
    if (row.subject.rfind("gmm", 0) != 0 || !row.ns) continue;
    for (const Row &other : *rows) {
      if (other.subject.rfind("gmm", 0) == 0 || !other.ns || *other.ns <= 0 || !comparable(row, other)) continue;
      const double over = time_over(row, other);
      const auto known =
          std::find_if(row.over.begin(), row.over.end(), [&](auto &pair) { return pair.first == other.subject; });
      if (known == row.over.end())
        row.over.emplace_back(other.subject, over);
      else if (other.kind == row.kind)
        known->second = over;
    }
  }
}

std::vector<std::string> compared(const std::vector<Row> &rows) {
  std::vector<std::string> out;
  for (const Row &row : rows)
    for (const auto &[name, value] : row.over)
      if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  return out;
}

std::string over_text(const Row &row, const std::string &name) {
  for (const auto &[other, value] : row.over)
    if (other == name) return decimals(value, value < 0.1 ? 4 : 2);
  return "";
}

void print_head(const Run &run) {
  if (!run.options.json) std::printf("%s\n", describe(run.platform).c_str());
}

}  // namespace gmm_bench
