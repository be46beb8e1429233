// SPDX-License-Identifier: Apache-2.0
// Each way to break the rules of lib/engine/LOCKS.md ends the process with both stacks, in a build with the option
// lock_checks of Meson. In such a build all tests show that the library keeps them.
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
TwoHeaps g_heaps;
Mutex g_events{LockRank::kIpcEvents}, g_own{LockRank::kTest};
Condition g_condition;

// A broken rule, and the words of the message that ends the process.
struct BrokenRule {
  const char *name;
  void (*breaks)();
  const char *words;
};
constexpr BrokenRule kBrokenRules[] = {
    // With both stacks.
    {"BriefLocksHaveAnOrder", [] { LockGuard pool(g_pool), set(g_set); },
     "takes the lock \"HeapSet\" \\(rank [0-9]+\\) while it holds \"ObjectPool\"(.|\n)*This thread is "
     "here:\n.*_test(.|\n)*"
     "It took \"ObjectPool\" \\(rank [0-9]+, held briefly\\) here:\n.*_test"},
    {"LocksOfOperationsHaveAnOrder", [] { LockGuard caches(g_caches), pauser(g_pauser); },
     "takes the lock \"Pauser\" \\(rank [0-9]+\\) while it holds \"HeapCaches\""},
    {"ALockIsTakenOnce", [] { LockGuard once(g_set), again(g_set); },
     "takes the lock \"HeapSet\" \\(rank [0-9]+\\) that it holds"},
    {"ALockIsHeldBeforeItIsGivenUp", [] { g_set.unlock(); }, "gives up the lock"},
    {"TwoOfARankNeedAnOperation", [] { LockGuard first(g_heaps.first), second(g_heaps.second); },
     "takes the lock \"Heap\""},
    {"TwoOfARankHaveTheOrderOfTheirAddresses",
     [] {
       LockGuard second(g_heaps.second);
       g_heaps.second.begin_operation();
       LockGuard first(g_heaps.first);
     },
     "takes the lock \"Heap\""},
    {"AnOperationIsNotWaitedForWithABriefLock",
     [] {
       LockGuard events(g_events);
       LockGuard heap(g_heaps.first);
     },
     "takes the lock \"Heap\" \\(rank [0-9]+\\), whose holder may be waiting, while it holds \"IpcEvents\""},
    {"NobodyWaitsWithABriefLock",
     [] {
       LockGuard set(g_set);
       check_may_wait("a stream");
     },
     "waits for a stream while it holds \"HeapSet\""},
    {"NobodyWaitsForAConditionWithAnotherLock",
     [] {
       LockGuard set(g_set), own(g_own);
       g_condition.wait_for(g_own, 0);
     },
     "waits for a condition while it holds \"HeapSet\""},
    {"NobodyWaitsForAFileOutsideOfAnOperation",
     [] {
       LockGuard heap(g_heaps.first);
       check_may_wait("a file");
     },
     "waits for a file while it holds \"Heap\""},
    {"OnlyProgressIsReportedDuringAnOperation",
     [] {
       LockGuard pauser(g_pauser);
       check_may_call_program(ProgramCall::kLog);
     },
     "calls the program's .* function while it holds \"Pauser\""},
    {"NoFunctionOfTheProgramRunsUnderABriefLock",
     [] {
       LockGuard set(g_set);
       check_may_call_program(ProgramCall::kProgress);
     },
     "calls the program's progress function while it holds \"HeapSet\""},
};

class LockDeathTest : public testing::TestWithParam<BrokenRule> {};

TEST_P(LockDeathTest, EndsTheProcess) {
  if (!kLockChecks) GTEST_SKIP() << "the library was built without -Dlock_checks=true";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(GetParam().breaks(), GetParam().words);
}
INSTANTIATE_TEST_SUITE_P(Each, LockDeathTest, testing::ValuesIn(kBrokenRules),
                         [](const auto &test) { return test.param.name; });

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

class LogTest : public testing::Test {
 protected:
  using Messages = std::vector<std::string>;
  static void hear(void *user, uint32_t, const char *message) {
    LogTest *self = static_cast<LogTest *>(user);
    EXPECT_EQ(t_locks.held, 0u);
    self->messages_.push_back(message);
    fail(GMM_ERROR_IO, "of the callback").ignore();
    if (!self->calls_again_) return;
    self->calls_again_ = false;
    LockGuard set(g_set);
    self->log_.write(LogLevel::kInfo, "inner");
  }
  const Log log_{hear, this};
  bool calls_again_ = false;  // the next message's callback calls the library
  Messages messages_;
};

TEST_F(LogTest, AMessageWaitsUntilItsThreadHoldsNoLock) {
  {
    LockGuard caches(g_caches);
    {
      LockGuard set(g_set);
      log_.write(LogLevel::kWarning, "first");
    }
    log_.write(LogLevel::kWarning, "second");
    std::thread([] { LockGuard pool(g_pool); }).join();  // another thread does not deliver it
    EXPECT_TRUE(messages_.empty());
  }
  log_.write(LogLevel::kWarning, "third");
  EXPECT_EQ(messages_, (Messages{"first", "second", "third"}));
}

TEST_F(LogTest, TheOwnerOfAThreadCacheIsNotInterrupted) {
  {
    const MessagesWait wait;
    { LockGuard set(g_set); }
    log_.write(LogLevel::kError, "later");
    { LockGuard set(g_set); }
    EXPECT_TRUE(messages_.empty());
  }
  EXPECT_EQ(messages_.size(), 1u);
}

TEST_F(LogTest, ACallbackMayCallTheLibraryAgain) {
  fail(GMM_ERROR_BUSY, "of the call").ignore();
  calls_again_ = true;
  {
    LockGuard set(g_set);
    log_.write(LogLevel::kInfo, "outer");
    log_.write(LogLevel::kInfo, "last");
  }
  EXPECT_EQ(messages_, (Messages{"outer", "last", "inner"}));
  EXPECT_STREQ(last_message(), "of the call");
}

}  // namespace
}  // namespace gmm
