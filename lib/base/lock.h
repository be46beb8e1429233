// SPDX-License-Identifier: Apache-2.0
// Mutexes without the C++ runtime. The order of all locks stands in lib/README.md.
#ifndef GMM_BASE_LOCK_H
#define GMM_BASE_LOCK_H

#include <pthread.h>

#include <cstdint>
#include <ctime>

namespace gmm {

// It has no destructor, so a global mutex needs no exit handler. On Linux a mutex of this kind owns no resource.
class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex &) = delete;
  Mutex &operator=(const Mutex &) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  bool try_lock() { return pthread_mutex_trylock(&mutex_) == 0; }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  friend class Condition;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class LockGuard {
 public:
  explicit LockGuard(Mutex &mutex) : mutex_(mutex) { mutex_.lock(); }
  ~LockGuard() { mutex_.unlock(); }
  LockGuard(const LockGuard &) = delete;
  LockGuard &operator=(const LockGuard &) = delete;

 private:
  Mutex &mutex_;
};

class Condition {
 public:
  Condition() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&condition_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  ~Condition() { pthread_cond_destroy(&condition_); }
  Condition(const Condition &) = delete;
  Condition &operator=(const Condition &) = delete;
  void wait(Mutex &mutex) { pthread_cond_wait(&condition_, &mutex.mutex_); }
  // False: the time passed first.
  bool wait_for(Mutex &mutex, uint64_t milliseconds) {
    timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += static_cast<time_t>(milliseconds / 1000);
    deadline.tv_nsec += static_cast<long>(milliseconds % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
      deadline.tv_nsec -= 1000000000;
      ++deadline.tv_sec;
    }
    return pthread_cond_timedwait(&condition_, &mutex.mutex_, &deadline) == 0;
  }
  void notify_one() { pthread_cond_signal(&condition_); }
  void notify_all() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_;
};

}  // namespace gmm
#endif
