// SPDX-License-Identifier: Apache-2.0
// Memory that nobody used for an age goes back to the driver, off the callers' path: by one thread of the context,
// which exists only while an age is set, or another job is.
//
// A round empties the caches of threads that did nothing for the age, and gives back what of each heap was free during
// the whole age (engine/heap/reclaim.h). It never waits for a stream. It passes by a heap that a pause or another
// operation has, and a heap's lock is free again after each slice of memory.
#ifndef GMM_ENGINE_HEAP_DECOMMIT_H
#define GMM_ENGINE_HEAP_DECOMMIT_H

#include <atomic>
#include <cstdint>

#include "base/thread.h"
#include "engine/heap/heap_set.h"
#include "engine/space/core.h"

namespace gmm {

class Decommit : NoCopy {
 public:
  Decommit(Core &core, HeapSet &heaps) : core_(core), heaps_(heaps) {}

  // Reads the age that GMM_DECOMMIT_DEFAULT stands for: GMM_DECOMMIT_AFTER_MS, else never. INVALID_VALUE when it says
  // neither.
  Status init();
  // Before the first set(): from then on the thread also calls fn(user) every kJobMs, until stop().
  void set_job(void (*fn)(void *user), void *user) {
    job_ = fn;
    job_user_ = user;
  }
  // Milliseconds, GMM_DECOMMIT_DEFAULT or GMM_DECOMMIT_NEVER. Starts or ends the thread. The caller holds no lock.
  Status set(uint64_t age);
  uint64_t age() const { return age_.load(std::memory_order_relaxed); }
  // Ends the thread; the context goes.
  void stop();
  // Returns when no round is under way; with Core::deferred raised, none gives memory back after it.
  void wait_for_round() { LockGuard guard(round_mutex_); }

  // One round at a time in milliseconds of any clock that goes forward. The thread calls it; tests do with a clock of
  // their own.
  void round(uint64_t now, uint64_t age);

 private:
  static constexpr uint64_t kJobMs = 5000;
  static constexpr uint64_t kSlice = uint64_t{32} << 20;

  void run();
  bool disturbed() const;
  bool is_stopping() const { return stopping_.load(std::memory_order_relaxed); }
  void round_of(Heap &heap, uint64_t now, uint64_t age, bool *refused);

  Core &core_;
  HeapSet &heaps_;
  uint64_t default_age_ = GMM_DECOMMIT_NEVER;
  void (*job_)(void *) = nullptr;
  void *job_user_ = nullptr;

  Mutex set_mutex_{LockRank::kDecommitSet};  // set and stop, over the thread's start and end
  bool running_ = false;
  Thread thread_;

  Mutex wake_mutex_{LockRank::kDecommitWake};
  Condition wake_;
  std::atomic<bool> stopping_{false};  // written with wake_mutex_ held
  bool changed_ = false;               // guarded by wake_mutex_
  std::atomic<uint64_t> age_{GMM_DECOMMIT_NEVER};

  Mutex round_mutex_{LockRank::kDecommitRound};
  std::atomic<bool> complained_{false};
};

}  // namespace gmm
#endif
