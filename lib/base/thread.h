// SPDX-License-Identifier: Apache-2.0
// The library's own threads, and what the system knows about any thread.
#ifndef GMM_BASE_THREAD_H
#define GMM_BASE_THREAD_H

#include <pthread.h>
#include <sys/types.h>

namespace gmm {

// The signals that a thread of the library receives. The program's signal handlers must not run on it.
enum class ThreadSignals {
  kNone,
  kFaults,  // faults reach the thread that caused them: this thread touches the program's memory
};

// As pthread_create(), and returns its error. `attributes` may be NULL.
int start_thread(pthread_t *out, const pthread_attr_t *attributes, ThreadSignals signals, void *(*fn)(void *),
                 void *argument);

// No heap gives memory to the calling thread from now on. It is one of the library's, and runs functions of the program
// that must not allocate.
void forbid_allocations();
bool may_allocate();

// The system's number of the calling thread, and whether a thread of this process with that number runs.
pid_t thread_number();
bool thread_runs(pid_t thread);

}  // namespace gmm
#endif
