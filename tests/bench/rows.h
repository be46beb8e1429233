// SPDX-License-Identifier: Apache-2.0
// The output of a run: one JSON object a row.
#ifndef GMM_BENCH_ROWS_H
#define GMM_BENCH_ROWS_H

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gmm_bench {

struct Row {
  std::string bench, subject, backend, device;
  uint32_t kind = 0;
  uint32_t threads = 1;
  std::optional<uint64_t> size;
  std::optional<std::string> trace;
  std::optional<double> ns, gbps, reserved_over_requested;
  std::optional<uint64_t> handles;
  std::vector<double> samples;  // not printed
  // Further numbers and words of the command, and the time over that of others.
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<std::pair<std::string, std::string>> words;
  std::vector<std::pair<std::string, double>> over;

  // The highest number of bytes held, by a counter of the subject or as it was seen from time to time; 0: not known.
  void set_peak(uint64_t reserved, bool is_counted, uint64_t requested);
};

void print_json(const Row &row);

// The middle one; of an even number the mean of the two in the middle. `values` must not be empty.
double median(std::vector<double> values);

// Time of `row` over time of `other`. The rows were measured in turns, so each sample is compared with the one beside
// it: a machine that slows down for a while moves both.
double time_over(const Row &row, const Row &other);

// "12.3 ns", "4.56 us", padded by the caller.
std::string time_text(double ns);

std::string decimals(double value, int count);

}  // namespace gmm_bench
#endif
