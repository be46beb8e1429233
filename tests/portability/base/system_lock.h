// SPDX-License-Identifier: Apache-2.0
// For the build of tests/portability alone: base/system_lock.h without a system. Nothing is locked.
#ifndef GMM_BASE_SYSTEM_LOCK_H
#define GMM_BASE_SYSTEM_LOCK_H

#include <cstdint>

namespace gmm {

class SystemMutex {
 public:
  constexpr SystemMutex() = default;
  SystemMutex(const SystemMutex &) = delete;
  SystemMutex &operator=(const SystemMutex &) = delete;
  void lock() {}
  bool try_lock() { return true; }
  void unlock() {}
};

class SystemCondition {
 public:
  SystemCondition() = default;
  SystemCondition(const SystemCondition &) = delete;
  SystemCondition &operator=(const SystemCondition &) = delete;
  void wait(SystemMutex &) {}
  bool wait_for(SystemMutex &, uint64_t) { return false; }
  void notify_one() {}
  void notify_all() {}
};

}  // namespace gmm
#endif
