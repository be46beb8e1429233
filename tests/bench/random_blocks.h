// SPDX-License-Identifier: Apache-2.0
// Blocks of many sizes, of which one after the other is replaced at random.
#ifndef GMM_BENCH_RANDOM_BLOCKS_H
#define GMM_BENCH_RANDOM_BLOCKS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "options.h"
#include "subject.h"

namespace gmm_bench {

// One sequence for all subjects. Sizes are spread evenly over their logarithms.
class RandomBlocks {
 public:
  static constexpr uint64_t kLeast = 512, kMost = uint64_t{8} << 20;

  explicit RandomBlocks(const Options &options) : options_(options), random_(1), sizes_(options.blocks) {}

  // Every slot once.
  std::vector<gmm_bench_operation> fill() {
    std::vector<gmm_bench_operation> out;
    for (uint32_t slot = 0; slot < options_.blocks; ++slot) out.push_back(allocate(slot));
    return out;
  }
  // Frees and allocates a block, so many times.
  std::vector<gmm_bench_operation> next(uint64_t count) {
    std::vector<gmm_bench_operation> out;
    for (uint64_t i = 0; i < count; ++i) {
      const auto slot = static_cast<uint32_t>(uniform() * options_.blocks);
      out.push_back({0, slot, 0});
      out.push_back(allocate(slot));
    }
    return out;
  }
  uint64_t peak() const { return peak_; }

 private:
  // 0 to below 1; not std::uniform_real_distribution, whose numbers differ between libraries.
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  gmm_bench_operation allocate(uint32_t slot) {
    const double part = uniform();
    const double low = static_cast<double>(kLeast), high = static_cast<double>(kMost);
    live_ -= sizes_[slot];
    sizes_[slot] = static_cast<uint64_t>(low * std::pow(high / low, part));
    live_ += sizes_[slot];
    peak_ = std::max(peak_, live_);
    return {sizes_[slot], slot, 0};
  }

  const Options &options_;
  std::mt19937_64 random_;
  std::vector<uint64_t> sizes_;
  uint64_t live_ = 0, peak_ = 0;
};

}  // namespace gmm_bench
#endif
