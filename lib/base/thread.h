// SPDX-License-Identifier: Apache-2.0
// The library's own threads, and what the system knows about any.
#ifndef GMM_BASE_THREAD_H
#define GMM_BASE_THREAD_H

#include <pthread.h>
#include <sys/types.h>

namespace gmm {

// The program's signal handlers are not for a thread of the library.
enum class ThreadSignals {
  kNone,
  kFaults,  // faults stay where they happen: such a thread touches the program's memory
};

// As pthread_create(), whose error it returns. attributes: NULL for the usual ones.
int start_thread(pthread_t *out, const pthread_attr_t *attributes, ThreadSignals signals, void *(*fn)(void *),
                 void *argument);

// The system's number of the calling thread, and whether a thread of this process with such a number runs.
pid_t thread_number();
bool thread_runs(pid_t thread);

}  // namespace gmm
#endif
