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

// A counter that all processors share. Its read costs half of monotonic_ns(), but may come before earlier loads of the
// thread, by less than a microsecond.
inline uint64_t read_counter() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}
// Ticks a second of the counter; 0: this machine has none. The first call may take 2 ms.
uint64_t counter_hertz();

}  // namespace gmm
#endif
