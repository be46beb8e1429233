// SPDX-License-Identifier: Apache-2.0
// Facts about processes, random numbers and the clock.
//
// The system's errors have the numbers of <cerrno> everywhere. A port translates its own.
#ifndef GMM_BASE_PROCESS_H
#define GMM_BASE_PROCESS_H

#include <cstdint>

#include "base/status.h"

namespace gmm {

// The number of the calling process.
int32_t process_number();
// The user as whom the process acts.
uint32_t current_user();
// The processors that the process may use; at least 1.
uint32_t usable_processors();

// The start of a process in clock ticks since boot. With the pid it identifies a process as long as the machine runs.
// Returns 0, ESRCH if there is no such process or only a zombie, or the errno of why the start cannot be read.
int process_start_time(int32_t pid, uint64_t *out);

// Reads a file of /proc or /sys completely and adds a zero byte. Returns 0 or an errno; EIO: the file is empty.
int read_small_file(const char *path, char *text, uint64_t size);
// Reads the number with which such a file begins. False: there is none.
bool read_number(const char *path, uint64_t *out);

// A number of this process's pid namespace. Processes with the same number see each other's pids. 0: the number is
// unknown, because /proc is missing or belongs to another namespace.
uint64_t pid_namespace();

// A text that names the machine since its last start, the same in all containers. False: the system tells none.
bool machine_boot(char *text, uint64_t size);

// Reads the kernel's random generator, and waits until it is seeded.
Status random_bytes(void *out, uint64_t size);

// The monotonic clock in milliseconds.
uint64_t monotonic_ms();
uint64_t monotonic_us();  // the same in microseconds
// The monotonic_ms() at which a time has passed; UINT64_MAX: never.
inline uint64_t deadline_after(uint64_t timeout_ms) {
  const uint64_t now = monotonic_ms();
  return timeout_ms < UINT64_MAX - now ? now + timeout_ms : UINT64_MAX;
}
inline uint64_t milliseconds_until(uint64_t deadline) {
  const uint64_t now = monotonic_ms();
  return now < deadline ? deadline - now : 0;
}

}  // namespace gmm
#endif
