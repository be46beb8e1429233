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

#include "base/lock.h"
#include "base/process_generation.h"

namespace gmm {

// Constant-initialised, without a destructor.
class ProcessMutex {
 public:
#if defined(GMM_LOCK_CHECKS)
  constexpr explicit ProcessMutex(LockRank rank) : rank_(rank) {}
#else
  constexpr explicit ProcessMutex(LockRank) {}
#endif
  ProcessMutex(const ProcessMutex &) = delete;
  ProcessMutex &operator=(const ProcessMutex &) = delete;
  // True: a process that forked this one used the lock, and this process did not yet. The caller resets what the lock
  // guards.
  [[nodiscard]] bool lock();
  void unlock();

 private:
  bool lock_word();
#if defined(GMM_LOCK_CHECKS)
  const LockRank rank_;
#endif
  std::atomic<uint32_t> word_{0};  // the generation of the process that used it last, and two bits
};

}  // namespace gmm
#endif
