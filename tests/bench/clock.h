// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_BENCH_CLOCK_H
#define GMM_BENCH_CLOCK_H

#include <chrono>
#include <cstdint>

namespace gmm_bench {

// Nanoseconds of a clock that never goes back.
inline uint64_t now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace gmm_bench
#endif
