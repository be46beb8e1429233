// SPDX-License-Identifier: Apache-2.0
// For the build of tests/portability alone: base/clock.h without a system. Time stands still.
#ifndef GMM_BASE_CLOCK_H
#define GMM_BASE_CLOCK_H

#include <cstdint>

namespace gmm {

inline uint64_t monotonic_ns() { return 0; }
inline uint64_t read_counter() { return 0; }
uint64_t counter_hertz();
inline uint64_t epoch_ns() { return 0; }

}  // namespace gmm
#endif
