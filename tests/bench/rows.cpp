// SPDX-License-Identifier: Apache-2.0
#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "options.h"

namespace gmm_bench {
namespace {

std::string quoted(const std::string &text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[64];
  const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.6g", value);
  return text;
}

template <typename T>
std::string optional(const std::optional<T> &value) {
  return value ? number(static_cast<double>(*value)) : "null";
}

}  // namespace

void Row::set_peak(uint64_t reserved, bool is_counted, uint64_t requested) {
  if (reserved != 0) reserved_over_requested = static_cast<double>(reserved) / static_cast<double>(requested);
  words.emplace_back("peak_by", is_counted ? "counter" : reserved != 0 ? "sampling" : "nothing");
  numbers.emplace_back("peak_requested", static_cast<double>(requested));
}

void print_json(const Row &row) {
  std::string out = "{\"bench\": " + quoted(row.bench) + ", \"subject\": " + quoted(row.subject) +
                    ", \"backend\": " + quoted(row.backend) + ", \"device\": " + quoted(row.device) +
                    ", \"kind\": " + quoted(kind_name(row.kind)) + ", \"size\": " + optional(row.size) +
                    ", \"threads\": " + std::to_string(row.threads) +
                    ", \"trace\": " + (row.trace ? quoted(*row.trace) : "null") + ", \"ns\": " + optional(row.ns) +
                    ", \"gbps\": " + optional(row.gbps) +
                    ", \"reserved_over_requested\": " + optional(row.reserved_over_requested) +
                    ", \"handles\": " + optional(row.handles);
  for (const auto &[name, text] : row.words) out += ", " + quoted(name) + ": " + quoted(text);
  for (const auto &[name, value] : row.numbers) out += ", " + quoted(name) + ": " + number(value);
  out += ", \"over\": {";
  for (size_t i = 0; i < row.over.size(); ++i)
    out += (i != 0 ? ", " : "") + quoted(row.over[i].first) + ": " + number(row.over[i].second);
  std::printf("%s}}\n", out.c_str());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double time_over(const Row &row, const Row &other) {
  if (row.samples.empty() || row.samples.size() != other.samples.size()) return *row.ns / *other.ns;
  std::vector<double> ratios;
  for (size_t i = 0; i < row.samples.size(); ++i) ratios.push_back(row.samples[i] / other.samples[i]);
  return median(ratios);
}

std::string decimals(double value, int count) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", count, value);
  return text;
}

std::string time_text(double ns) {
  if (ns < 1e3) return decimals(ns, 1) + " ns";
  if (ns < 1e6) return decimals(ns / 1e3, 2) + " us";
  return decimals(ns / 1e6, 2) + " ms";
}

}  // namespace gmm_bench
