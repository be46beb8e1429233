// SPDX-License-Identifier: Apache-2.0
// Clocks in nanoseconds. They are inline, as a trace reads one at each event.
#ifndef GMM_BASE_CLOCK_H
#define GMM_BASE_CLOCK_H

#include <cstdint>
#include <ctime>

namespace gmm {

inline uint64_t read_clock_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

inline uint64_t monotonic_ns() { return read_clock_ns(CLOCK_MONOTONIC); }
// The time since the beginning of 1970 in UTC.
inline uint64_t epoch_ns() { return read_clock_ns(CLOCK_REALTIME); }

}  // namespace gmm
#endif
