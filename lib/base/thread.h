// SPDX-License-Identifier: Apache-2.0
// The library's own threads, the system's knowledge about any thread, and functions that run at a thread's end.
#ifndef GMM_BASE_THREAD_H
#define GMM_BASE_THREAD_H

#include <cstdint>

namespace gmm {

// The system's handle of a thread, which somebody joins or detaches.
struct Thread {
  uintptr_t handle = 0;
};

// The signals that a thread of the library receives. The program's signal handlers must not run on it.
enum class ThreadSignals {
  kNone,
  kFaults,  // faults reach the thread that caused them: this thread touches the program's memory
};

// Returns 0 or an error number. `stack_size`: bytes; 0, or less than the system's minimum: the system's default.
int start_thread(Thread *out, ThreadSignals signals, void *(*fn)(void *), void *argument, uint64_t stack_size = 0);
// The function of a thread that calls Run() of the object that is its argument.
template <typename T, void (T::*Run)()>
void *thread_entry(void *object) {
  (static_cast<T *>(object)->*Run)();
  return nullptr;
}
// Returns when the thread has ended. Its handle is invalid from then on.
void join_thread(Thread thread);
bool is_calling_thread(Thread thread);
// Nobody joins the calling thread.
void detach_calling_thread();

// Sets the name of the calling thread, cut to 15 bytes.
void name_thread(const char *name);
// Lets another thread run.
void yield_thread();
void sleep_us(uint64_t microseconds);

// The system's number of the calling thread, and whether a thread of this process with that number runs.
int32_t thread_number();
bool thread_runs(int32_t thread);

// A value for each thread, with a function that runs at the end of each thread that set it.
struct ThreadKey {
  uintptr_t number = 0;
};
// False: the process has no key left.
bool create_thread_key(ThreadKey *out, void (*end)(void *value));
// False: no host memory.
bool set_thread_key(ThreadKey key, void *value);
// No thread runs the function from now on; one that is inside goes on.
void delete_thread_key(ThreadKey key);

}  // namespace gmm
#endif
