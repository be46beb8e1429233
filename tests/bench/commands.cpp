// SPDX-License-Identifier: Apache-2.0
#include "commands.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gmm_bench {

bool open_instances(const Run &run, const std::vector<uint32_t> &kinds, Workers *workers, uint32_t threads,
                    std::deque<Instance> *out) {
  bool wanted = false, there = false;
  for (const gmm_bench_subject *subject : run.subjects) {
    wanted = wanted || is_gmm(*subject);
    for (const uint32_t kind : kinds_of(*subject, kinds)) {
      Instance &instance = out->emplace_back();
      if (instance.open(*subject, kind, 0, workers, threads, run.options)) {
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

Row row_of(const Run &run, const std::string &subject, uint32_t kind) {
  Row row;
  row.bench = run.options.command;
  row.subject = subject;
  row.backend = run.platform.backend_name;
  row.device = run.platform.device_name;
  row.kind = kind;
  return row;
}

std::vector<uint32_t> kinds_or(const Run &run, std::vector<uint32_t> usual) {
  if (!run.options.kinds.empty()) return run.options.kinds;
  if (!run.platform.has_vmm()) std::erase(usual, GMM_BENCH_VMM);
  return usual;
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

namespace {

using Cells = std::vector<std::pair<std::string, std::string>>;  // a column's name, and its text in one row

Cells cells_of(const Row &row) {
  Cells out = {{"subject", row.subject}, {"kind", kind_name(row.kind)}};
  for (const auto &[name, text] : row.words) out.emplace_back(name, text);
  out.emplace_back("threads", std::to_string(row.threads));
  if (row.ns) out.emplace_back("time", time_text(*row.ns));
  if (row.gbps) out.emplace_back("GB/s", decimals(*row.gbps, 2));
  if (row.reserved_over_requested) out.emplace_back("reserved/requested", decimals(*row.reserved_over_requested, 3));
  if (row.handles) out.emplace_back("calls", std::to_string(*row.handles));
  for (const auto &[name, value] : row.numbers)
    out.emplace_back(name, decimals(value, value == std::floor(value) || value >= 100 ? 0 : 4));
  for (const auto &[name, value] : row.over) out.emplace_back("over " + name, decimals(value, value < 0.1 ? 4 : 2));
  return out;
}

}  // namespace

void print_rows(const Run &run, const std::string &title, const std::vector<Row> &rows) {
  if (run.options.json) {
    for (const Row &row : rows) print_json(row);
    std::fflush(stdout);
    return;
  }
  static bool has_head = false;
  if (!has_head) std::printf("%s\n", describe(run.platform).c_str());
  has_head = true;
  std::vector<std::string> columns;
  for (const Row &row : rows)
    for (const auto &[name, text] : cells_of(row))
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  std::vector<std::vector<std::string>> lines = {columns};
  for (const Row &row : rows) {
    lines.emplace_back(columns.size(), "-");
    for (const auto &[name, text] : cells_of(row))
      lines.back()[static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin())] = text;
  }
  std::printf("%s%s\n", title.empty() ? "" : "\n", title.c_str());
  for (const auto &line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      size_t width = 0;
      for (const auto &other : lines) width = std::max(width, other[i].size());
      const std::string blanks(width - line[i].size(), ' ');
      text += (i != 0 ? "  " : "") + (i < 2 ? line[i] + blanks : blanks + line[i]);
    }
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

}  // namespace gmm_bench
