// SPDX-License-Identifier: Apache-2.0
// For the build of tests/portability alone: base/system_lock.h without a system. Nothing is locked.
#ifndef GMM_BASE_SYSTEM_LOCK_H
#define GMM_BASE_SYSTEM_LOCK_H

#include <cstdint>

#include "base/no_copy.h"

namespace gmm {

class SystemMutex : NoCopy {
 public:
  constexpr SystemMutex() = default;
  void lock() {}
  bool try_lock() { return true; }
  void unlock() {}
};

class SystemCondition : NoCopy {
 public:
  SystemCondition() = default;
  void wait(SystemMutex &) {}
  bool wait_for(SystemMutex &, uint64_t) { return false; }
  void notify_one() {}
  void notify_all() {}
};

}  // namespace gmm
#endif
