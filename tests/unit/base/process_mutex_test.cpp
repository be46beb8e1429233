// SPDX-License-Identifier: Apache-2.0
#include "base/process_mutex.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

namespace gmm {
namespace {

// Runs fn in a forked child that ends by itself if it hangs; whether fn returned true.
template <typename Fn>
bool in_child(Fn fn) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(fn() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST(ProcessMutex, ExcludesAndSaysNothingOfTheFirstUse) {
  ProcessMutex mutex{LockRank::kTest};
  EXPECT_FALSE(mutex.lock());
  mutex.unlock();
  uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        EXPECT_FALSE(mutex.lock());
        ++count;
        mutex.unlock();
      }
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(count, 80000u);
}

TEST(ProcessMutex, AChildTakesALockThatTheParentHolds) {
  ProcessMutex mutex{LockRank::kTest};
  ASSERT_FALSE(mutex.lock());
  EXPECT_TRUE(in_child([&] {
    if (!mutex.lock()) return false;  // told, once
    mutex.unlock();
    const bool again = mutex.lock();
    mutex.unlock();
    return !again;
  }));
  // A child of the child, by a fork that calls no handler of the C library.
  EXPECT_TRUE(in_child([&] {
    if (!mutex.lock()) return false;
    const pid_t grandchild = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (grandchild == 0) {
      alarm(60);
      _exit(mutex.lock() ? 0 : 1);
    }
    int status = -1;
    return waitpid(grandchild, &status, 0) == grandchild && status == 0;
  }));
  mutex.unlock();
  EXPECT_FALSE(mutex.lock());
  mutex.unlock();
}

TEST(ProcessMutex, AnUnusedLockTellsAChildNothing) {
  ProcessMutex mutex{LockRank::kTest};
  EXPECT_TRUE(in_child([&] { return !mutex.lock(); }));
}

TEST(ProcessMutex, GenerationsDiffer) {
  const uint32_t mine = process_generation();
  EXPECT_NE(mine, 0u);
  EXPECT_TRUE(in_child([&] { return process_generation() != mine && process_generation() == process_generation(); }));
  EXPECT_EQ(process_generation(), mine);
}

}  // namespace
}  // namespace gmm
