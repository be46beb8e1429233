// SPDX-License-Identifier: Apache-2.0
// A mutex for what all contexts of a process share. It is usable in a forked child, whoever held it at the fork.
//
// A child has one thread, and memory as it was in the middle of whatever the parent's other threads did. An ordinary
// mutex that one of those held stays locked for ever. This one knows the process that locked it: a lock of another
// process is free. What it guards may be half written then, so the first holder in the child is told to make it anew.
#ifndef GMM_BASE_PROCESS_MUTEX_H
#define GMM_BASE_PROCESS_MUTEX_H

#include <atomic>
#include <cstdint>

namespace gmm {

// A number of this process among its ancestors: a forked child has another one, however it was forked.
uint32_t process_generation();

// Constant-initialised, without a destructor.
class ProcessMutex {
 public:
  constexpr ProcessMutex() = default;
  ProcessMutex(const ProcessMutex &) = delete;
  ProcessMutex &operator=(const ProcessMutex &) = delete;
  // True: a process that forked this one used the lock, and this process did not yet. The caller resets what the lock
  // guards.
  [[nodiscard]] bool lock();
  void unlock();

 private:
  std::atomic<uint32_t> word_{0};  // the generation of the process that used it last, and two bits
};

// Blocks while *word == value; it may return early. Any thread wakes all that wait.
void wait_while(const std::atomic<uint32_t> &word, uint32_t value);
void wake_all(const std::atomic<uint32_t> &word);

}  // namespace gmm
#endif
