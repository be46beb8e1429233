// SPDX-License-Identifier: Apache-2.0
#include "base/per_thread.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <thread>

namespace gmm {
namespace {

TEST(PerThread, EachThreadAndKeyHasItsOwn) {
  PerThread<int, const char *> values{HostAllocator()};
  EXPECT_EQ(values.find(1), nullptr);
  ASSERT_TRUE(values.reserve());
  values.add_reserved(1, "mine");
  EXPECT_STREQ(values.find(1), "mine");
  EXPECT_EQ(values.find(2), nullptr);
  std::thread([&] { EXPECT_EQ(values.find(1), nullptr); }).join();  // this thread runs
  values.clear();
  EXPECT_EQ(values.find(1), nullptr);
}

TEST(PerThread, AThreadThatEndedLeavesItsValue) {
  PerThread<int, const char *> values{HostAllocator()};
  std::binary_semaphore end{0}, added{0};
  pid_t number = 0;
  std::thread other([&] {
    number = thread_number();
    EXPECT_TRUE(values.reserve());
    values.add_reserved(1, "left");
    added.release();
    end.acquire();
  });
  added.acquire();
  EXPECT_EQ(values.find(1), nullptr);
  end.release();
  other.join();
  while (thread_runs(number)) std::this_thread::yield();  // the system may know it a little longer
  EXPECT_EQ(values.find(2), nullptr);
  EXPECT_STREQ(values.find(1), "left");
  std::thread([&] { EXPECT_EQ(values.find(1), nullptr); }).join();  // it has an owner again
}

}  // namespace
}  // namespace gmm
