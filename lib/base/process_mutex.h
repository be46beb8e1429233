// SPDX-License-Identifier: Apache-2.0
// A mutex for objects that all contexts of a process share. It is usable in a forked child, even if another thread held
// it at the fork.
//
// A child has one thread, and memory as it was in the middle of whatever the parent's other threads did. An ordinary
// mutex that one of those held stays locked for ever. This one knows the process that locked it: a lock of another
// process is free. The guarded memory may be half written then, so lock() tells the first holder in the child to reset
// it.
#ifndef GMM_BASE_PROCESS_MUTEX_H
#define GMM_BASE_PROCESS_MUTEX_H

#include <atomic>
#include <cstdint>

#include "base/lock.h"
#include "base/process_generation.h"

namespace gmm {

// Constant-initialised, without a destructor.
class ProcessMutex : Ranked {
 public:
  constexpr explicit ProcessMutex(LockRank rank) : Ranked(rank) {}
  // True: a process that forked this one used the lock, and this process did not yet. The caller resets what the lock
  // guards.
  [[nodiscard]] bool lock();
  void unlock();

 private:
  bool lock_word();
  std::atomic<uint32_t> word_{0};  // the generation of the process that used it last, and two bits
};

// Holds such a lock. reset() runs first where the lock's memory is the parent's.
template <typename Reset>
class ProcessGuard : NoCopy {
 public:
  ProcessGuard(ProcessMutex &mutex, Reset reset) : mutex_(mutex) {
    if (mutex.lock()) reset();
  }
  ~ProcessGuard() { mutex_.unlock(); }

 private:
  ProcessMutex &mutex_;
};

}  // namespace gmm
#endif
