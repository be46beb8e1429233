// SPDX-License-Identifier: Apache-2.0
// Each way to break the rules of lib/engine/LOCKS.md ends the process with both stacks, and each way to keep them does
// not. Without the Meson option lock_checks only the second half runs.
#include "base/lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace gmm {
namespace {

// Ranks in their order: two of operations, two brief ones.
Mutex g_pauser{LockRank::kPauser}, g_caches{LockRank::kHeapCaches};
Mutex g_set{LockRank::kHeapSet}, g_pool{LockRank::kObjectPool};

// By address.
struct TwoHeaps {
  OperationLock first{LockRank::kHeap}, second{LockRank::kHeap};
};

class LockDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kLockChecks) GTEST_SKIP() << "the library was built without -Dlock_checks=true";
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

TEST_F(LockDeathTest, TheOrderIsThatOfTheRanks) {
  EXPECT_DEATH(
      {
        LockGuard pool(g_pool);
        LockGuard set(g_set);
      },
      "takes the lock \"HeapSet\" \\(rank [0-9]+\\) while it holds \"ObjectPool\"");
  EXPECT_DEATH(
      {
        LockGuard caches(g_caches);
        LockGuard pauser(g_pauser);
      },
      "takes the lock \"Pauser\" \\(rank [0-9]+\\) while it holds \"HeapCaches\"");
}

TEST_F(LockDeathTest, BothStacksArePrinted) {
  EXPECT_DEATH(
      {
        LockGuard pool(g_pool);
        LockGuard set(g_set);
      },
      "This thread is here:\n.*_test(.|\n)*It took \"ObjectPool\" \\(rank [0-9]+, held briefly\\) here:\n"
      ".*_test");
}

TEST_F(LockDeathTest, ALockIsTakenOnce) {
  EXPECT_DEATH(
      {
        LockGuard once(g_set);
        g_set.lock();
      },
      "takes the lock \"HeapSet\" \\(rank [0-9]+\\) that it holds");
  EXPECT_DEATH(g_set.unlock(), "gives up the lock");
}

TEST_F(LockDeathTest, TwoOfARankAreForOperationsOnly) {
  EXPECT_DEATH(
      {
        TwoHeaps heaps;
        LockGuard first(heaps.first);
        LockGuard second(heaps.second);
      },
      "takes the lock \"Heap\"");
  EXPECT_DEATH(
      {
        TwoHeaps heaps;
        LockGuard second(heaps.second);
        heaps.second.begin_operation();
        LockGuard first(heaps.first);
      },
      "takes the lock \"Heap\"");
}

TEST_F(LockDeathTest, AnOperationIsNotWaitedForWithABriefLock) {
  EXPECT_DEATH(
      {
        Mutex events(LockRank::kIpcEvents);
        OperationLock heap(LockRank::kHeap);
        LockGuard first(events);
        LockGuard second(heap);
      },
      "takes the lock \"Heap\" \\(rank [0-9]+\\), whose holder may be waiting, while it holds \"IpcEvents\"");
}

TEST_F(LockDeathTest, NobodyWaitsWithABriefLock) {
  EXPECT_DEATH(
      {
        LockGuard set(g_set);
        check_may_wait("a stream");
      },
      "waits for a stream while it holds \"HeapSet\"");
  EXPECT_DEATH(
      {
        Condition condition;
        Mutex own(LockRank::kTest);
        LockGuard set(g_set);
        LockGuard guard(own);
        condition.wait_for(own, 0);
      },
      "waits for a condition while it holds \"HeapSet\"");
  EXPECT_DEATH(
      {
        OperationLock heap(LockRank::kHeap);
        LockGuard guard(heap);
        check_may_wait("a file");
      },
      "waits for a file while it holds \"Heap\"");
}

TEST_F(LockDeathTest, NoFunctionOfTheProgramRunsUnderALock) {
  for (ProgramCall call : {ProgramCall::kLog, ProgramCall::kOutOfMemory, ProgramCall::kWrite}) {
    EXPECT_DEATH(
        {
          LockGuard pauser(g_pauser);
          check_may_call_program(call);
        },
        "calls the program's .* function while it holds \"Pauser\"");
  }
  EXPECT_DEATH(
      {
        LockGuard set(g_set);
        check_may_call_program(ProgramCall::kProgress);
      },
      "calls the program's progress function while it holds \"HeapSet\"");
}

// --- What the rules allow --------------------------------------------------------------------------------------------

TEST(Lock, LocksInTheirOrderAreTaken) {
  OperationLock heap(LockRank::kHeap);
  LockGuard pauser(g_pauser);
  LockGuard caches(g_caches);
  LockGuard guard(heap);
  LockGuard set(g_set);
  LockGuard pool(g_pool);
}

TEST(Lock, AnOperationWaitsAndReportsItsProgress) {
  TwoHeaps heaps;
  LockGuard pauser(g_pauser);
  LockGuard first(heaps.first);
  heaps.first.begin_operation();
  LockGuard second(heaps.second);
  heaps.second.begin_operation();
  check_may_wait("a stream");
  check_may_call_program(ProgramCall::kProgress);
  Condition condition;
  Mutex own(LockRank::kTest);
  LockGuard guard(own);
  EXPECT_FALSE(condition.wait_for(own, 0));
}

TEST(Lock, WhoHoldsNothingMayDoEverything) {
  check_may_wait("a stream");
  for (ProgramCall call : {ProgramCall::kLog, ProgramCall::kOutOfMemory, ProgramCall::kProgress, ProgramCall::kWrite})
    check_may_call_program(call);
}

TEST(Lock, LocksMayBeGivenUpInAnyOrder) {
  g_caches.lock();
  g_set.lock();
  g_caches.unlock();
  g_pool.lock();
  g_set.unlock();
  g_pool.unlock();
  EXPECT_EQ(t_locks.held, 0u);
}

TEST(OperationLock, AnOperationKeepsOthersOut) {
  OperationLock lock(LockRank::kHeap);
  lock.lock();
  EXPECT_FALSE(lock.is_operation_of_holder());
  lock.begin_operation();
  EXPECT_TRUE(lock.is_operation_of_holder());
  EXPECT_TRUE(lock.has_operation());
  int order = 0, waited = 0;
  std::atomic<bool> refused{false};
  std::thread other([&] {
    refused = !lock.lock_unless_operation() && !lock.try_lock();
    LockGuard guard(lock);
    waited = ++order;
  });
  while (!refused) std::this_thread::yield();
  const int before = ++order;
  lock.unlock();
  other.join();
  EXPECT_EQ(before, 1);
  EXPECT_EQ(waited, 2);
  EXPECT_FALSE(lock.has_operation());
  ASSERT_TRUE(lock.lock_unless_operation());
  lock.unlock();
  EXPECT_EQ(t_locks.held, 0u);
}

TEST(OperationLock, AnOperationMayEndBeforeTheLock) {
  OperationLock lock(LockRank::kHeap);
  lock.lock();
  lock.begin_operation();
  lock.end_operation();
  EXPECT_FALSE(lock.is_operation_of_holder());
  lock.unlock();
  ASSERT_TRUE(lock.try_lock());
  lock.unlock();
}

// --- The log waits for locks -----------------------------------------------------------------------------------------

struct Heard {
  std::vector<std::string> messages;
  std::vector<uint32_t> held;
};

void hear(void *user, uint32_t, const char *message) {
  Heard *heard = static_cast<Heard *>(user);
  heard->messages.push_back(message);
  heard->held.push_back(t_locks.held);
}

TEST(Log, AMessageWaitsUntilItsThreadHoldsNoLock) {
  Heard heard;
  const Log log(hear, &heard);
  {
    LockGuard caches(g_caches);
    {
      LockGuard set(g_set);
      log.write(LogLevel::kWarning, "first");
    }
    log.write(LogLevel::kWarning, "second");
    EXPECT_TRUE(heard.messages.empty());
  }
  log.write(LogLevel::kWarning, "third");
  EXPECT_EQ(heard.messages, (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_EQ(heard.held, (std::vector<uint32_t>{0, 0, 0}));
}

TEST(Log, OtherThreadsDoNotDeliverAMessage) {
  Heard heard;
  const Log log(hear, &heard);
  LockGuard set(g_set);
  log.write(LogLevel::kError, "mine");
  std::thread([] { LockGuard pool(g_pool); }).join();
  EXPECT_TRUE(heard.messages.empty());
}

TEST(Log, TheOwnerOfAThreadCacheIsNotInterrupted) {
  Heard heard;
  const Log log(hear, &heard);
  {
    const MessagesWait wait;
    { LockGuard set(g_set); }
    log.write(LogLevel::kError, "later");
    { LockGuard set(g_set); }
    EXPECT_TRUE(heard.messages.empty());
  }
  EXPECT_EQ(heard.messages.size(), 1u);
}

struct Nested {
  const Log *log;
  int depth = 0;
  std::vector<std::string> messages;
};

TEST(Log, ACallbackMayCallTheLibraryAgain) {
  Nested nested;
  const Log log(
      [](void *user, uint32_t, const char *message) {
        Nested *self = static_cast<Nested *>(user);
        self->messages.push_back(message);
        fail(GMM_ERROR_IO, "of the callback").ignore();
        if (self->depth++ != 0) return;
        LockGuard set(g_set);
        self->log->write(LogLevel::kInfo, "inner");
      },
      &nested);
  nested.log = &log;
  fail(GMM_ERROR_BUSY, "of the call").ignore();
  {
    LockGuard set(g_set);
    log.write(LogLevel::kInfo, "outer");
    log.write(LogLevel::kInfo, "last");
  }
  EXPECT_EQ(nested.messages, (std::vector<std::string>{"outer", "last", "inner"}));
  EXPECT_STREQ(last_message(), "of the call");
}

}  // namespace
}  // namespace gmm
