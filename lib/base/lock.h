// SPDX-License-Identifier: Apache-2.0
// Mutexes without the C++ runtime. Every lock has a rank (base/lock_rank.h).
//
// A thread counts the locks that it holds, since a message to the program's log waits until it holds none
// (base/log.h). In a build with GMM_LOCK_CHECKS (the Meson option lock_checks) each thread also knows which ones. The
// process then aborts, with the stacks of both sides, when a thread
//  - takes a lock that does not stand below all locks that it holds,
//  - takes an operation's lock while it holds a brief one,
//  - waits while it holds a brief lock (check_may_wait()),
//  - calls a function of the program while it holds a lock (check_may_call_program()).
#ifndef GMM_BASE_LOCK_H
#define GMM_BASE_LOCK_H

#include <cstdint>

#include "base/lock_rank.h"
#include "base/no_copy.h"
#include "base/system_lock.h"

namespace gmm {

// --- What a thread holds -----------------------------------------------------------------------------------------

struct ThreadLocks {
  uint32_t held = 0;
  bool has_messages = false;  // for the log, queued while a lock was held
};
// Not of the initial-exec model, whose storage a library that is opened late may not get.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
extern constinit thread_local ThreadLocks t_locks;

// base/log.cpp: calls the program's log for each queued message.
void deliver_messages();

inline void enter_lock() { ++t_locks.held; }
inline void leave_lock() {
  if (--t_locks.held == 0 && __builtin_expect(t_locks.has_messages, 0)) deliver_messages();
}

// Messages wait until this ends, as while a lock is held: for a thread that other threads wait for without a lock.
class MessagesWait : NoCopy {
 public:
  // now: false where begin() follows, if at all.
  explicit MessagesWait(bool now = true) {
    if (now) begin();
  }
  ~MessagesWait() { end(); }
  void begin() {
    if (!begun_) enter_lock();
    begun_ = true;
  }
  void end() {
    const bool begun = begun_;
    begun_ = false;
    if (begun) leave_lock();
  }

 private:
  bool begun_ = false;
};

// While one lives, the calling thread counts as one without locks. An operation runs a function of the program with its
// claim of tags (ProgramCall::kWatch). Nothing that the function calls waits for that claim, or it is BUSY.
class LocksAside : NoCopy {
 public:
  LocksAside();
  ~LocksAside();

 private:
  const uint32_t held_;
};

// --- The checks --------------------------------------------------------------------------------------------------

// The functions of the program, which run without a lock of the library. The progress of a pause finds those of its
// operation, as its memory must not change until the end. A watcher finds the claim of its operation's tags.
enum class ProgramCall { kLog, kOutOfMemory, kProgress, kWrite, kWatch, kAsk, kTrace };

#if defined(GMM_LOCK_CHECKS)
inline constexpr bool kLockChecks = true;
// Before the wait for a lock. may_wait: the lock's holder may be waiting.
void check_lock_order(const void *lock, LockRank rank, bool may_wait);
// The thread has the lock. over_waits: it may wait with it.
void note_locked(const void *lock, LockRank rank, bool over_waits);
void note_unlocked(const void *lock);
// Before a wait for a stream, an event, another process or a file. `except`: the lock that a condition gives up.
void check_may_wait(const char *what, const void *except = nullptr);
void check_may_call_program(ProgramCall call);
bool is_operation(LockRank rank);
#else
inline constexpr bool kLockChecks = false;
inline void check_lock_order(const void *, LockRank, bool) {}
inline void note_locked(const void *, LockRank, bool) {}
inline void note_unlocked(const void *) {}
inline void check_may_wait(const char *, const void * = nullptr) {}
inline void check_may_call_program(ProgramCall) {}
inline bool is_operation(LockRank) { return false; }
#endif

// --- Locks -------------------------------------------------------------------------------------------------------

// The rank of a lock, which only the checks ask for.
class Ranked {
 protected:
#if defined(GMM_LOCK_CHECKS)
  constexpr explicit Ranked(LockRank rank) : rank_(rank) {}
  LockRank rank() const { return rank_; }

 private:
  const LockRank rank_;
#else
  constexpr explicit Ranked(LockRank) {}
  static constexpr LockRank rank() { return LockRank::kTest; }
#endif
};

// It has no destructor, so a global mutex needs no exit handler.
class Mutex : Ranked {
 public:
  constexpr explicit Mutex(LockRank rank) : Ranked(rank) {}
  void lock() {
    check_lock_order(this, rank(), is_operation(rank()));
    mutex_.lock();
    note_locked(this, rank(), is_operation(rank()));
    enter_lock();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    note_locked(this, rank(), is_operation(rank()));
    enter_lock();
    return true;
  }
  void unlock() {
    note_unlocked(this);
    mutex_.unlock();
    leave_lock();
  }

 private:
  friend class Condition;
  SystemMutex mutex_;
};

// A lock whose holder may turn it into the lock of an operation, which waits for streams or files with it (a pause, a
// move). A thread that must not wait for that asks with lock_unless_operation(). The rank is of kind kOperation.
class OperationLock : Ranked {
 public:
  explicit OperationLock(LockRank rank) : Ranked(rank) {}
  // Waits for an operation too. The holder never waits.
  void lock() {
    (void)take(true, [] { return false; });
  }
  // False: another thread has it.
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    if (operation_) {
      mutex_.unlock();
      return false;
    }
    note_locked(this, rank(), false);
    enter_lock();
    return true;
  }
  // False: an operation has it. Otherwise as lock().
  bool lock_unless_operation() {
    return take(false, [] { return true; });
  }
  // As lock(). But an operation that has it is not waited for when accept() is true, which runs while that operation
  // cannot end: false.
  template <typename Fn>
  bool lock_unless_operation(Fn accept) {
    return take(true, accept);
  }
  // Whether an operation has it at this moment.
  bool has_operation() {
    mutex_.lock();
    const bool has = operation_;
    mutex_.unlock();
    return has;
  }
  // fn(user) runs at the end of each operation, with the lock held and before anybody else has it.
  void at_end_of_operation(void (*fn)(void *), void *user) {
    end_fn_ = fn;
    end_user_ = user;
  }
  // After lock(): the holder may wait from now on.
  void begin_operation() {
    note_unlocked(this);
    note_locked(this, rank(), true);
    operation_ = true;
    mutex_.unlock();
  }
  // The holder waits no more, as after lock().
  void end_operation() {
    mutex_.lock();
    operation_ = false;
    ended_.notify_all();
    note_unlocked(this);
    note_locked(this, rank(), false);
    if (end_fn_ != nullptr) end_fn_(end_user_);
  }
  // For the holder: whether it holds an operation's lock.
  bool is_operation_of_holder() const { return operation_; }
  void unlock() {
    if (operation_) end_operation();
    note_unlocked(this);
    mutex_.unlock();
    leave_lock();
  }

 private:
  template <typename Fn>
  bool take(bool may_wait, Fn accept) {
    check_lock_order(this, rank(), may_wait);
    mutex_.lock();
    while (operation_) {
      if (accept()) {
        mutex_.unlock();
        return false;
      }
      ended_.wait(mutex_);
    }
    note_locked(this, rank(), false);
    enter_lock();
    return true;
  }

  SystemMutex mutex_;
  SystemCondition ended_;
  bool operation_ = false;  // its holder alone changes it, with mutex_ held
  void (*end_fn_)(void *) = nullptr;
  void *end_user_ = nullptr;
};

// For a lock that was taken otherwise.
template <typename Lock>
class UnlockAtEnd : NoCopy {
 public:
  explicit UnlockAtEnd(Lock &lock) : lock_(lock) {}
  ~UnlockAtEnd() { lock_.unlock(); }

 private:
  Lock &lock_;
};

template <typename Lock>
class LockGuard : UnlockAtEnd<Lock> {
 public:
  explicit LockGuard(Lock &lock) : UnlockAtEnd<Lock>((lock.lock(), lock)) {}
};

// Gives the lock up until the end of the scope.
class Unlocked : NoCopy {
 public:
  explicit Unlocked(Mutex &mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() { mutex_.lock(); }

 private:
  Mutex &mutex_;
};

class Condition {
 public:
  void wait(Mutex &mutex) {
    check_may_wait("a condition", &mutex);
    condition_.wait(mutex.mutex_);
  }
  // False: the time passed first.
  bool wait_for(Mutex &mutex, uint64_t milliseconds) {
    check_may_wait("a condition", &mutex);
    return condition_.wait_for(mutex.mutex_, milliseconds);
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  SystemCondition condition_;
};

}  // namespace gmm
#endif
