// SPDX-License-Identifier: Apache-2.0
// What the system knows about processes, and its random numbers.
#ifndef GMM_BASE_PROCESS_H
#define GMM_BASE_PROCESS_H

#include <cstdint>

#include "base/status.h"

namespace gmm {

// When the process started, in clock ticks since boot: with the pid it names a process for as long as the machine runs.
// 0; ESRCH when there is no such process (a zombie counts as none); otherwise the errno of why it cannot be told.
int process_start_time(int32_t pid, uint64_t *out);

// A number of this process's pid namespace: processes with the same one see each other's pids. 0: it cannot be told, as /proc is missing or
// another namespace's.
uint64_t pid_namespace();

// The kernel's random generator; waits until it is seeded.
Status random_bytes(void *out, uint64_t size);

// Milliseconds of the monotonic clock.
uint64_t monotonic_ms();

// Sets the thread's name, cut to 15 bytes, as tools show it.
void name_thread(const char *name);

}  // namespace gmm
#endif
