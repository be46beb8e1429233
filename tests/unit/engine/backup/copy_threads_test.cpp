// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/copy_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace gmm::test {
namespace {

struct Counted : CopyTask {
  Counted() {
    run = [](CopyTask *self) {
      Counted &task = *static_cast<Counted *>(self);
      const uint32_t now = ++*task.running;
      for (uint32_t most = *task.most; now > most && !task.most->compare_exchange_weak(most, now);) {
      }
      if (task.milliseconds != 0) std::this_thread::sleep_for(std::chrono::milliseconds(task.milliseconds));
      ++task.runs;
      task.place = (*task.order)++;
      --*task.running;
    };
  }
  std::atomic<uint32_t> *running = nullptr, *most = nullptr, *order = nullptr;
  uint32_t runs = 0, place = 0, milliseconds = 0;
};

class CopyThreadsTest : public testing::Test {
 public:
  std::vector<Counted> tasks(uint64_t count, uint32_t milliseconds = 0) {
    std::vector<Counted> made(count);
    for (Counted &task : made) {
      task.running = &running;
      task.most = &most;
      task.order = &order;
      task.milliseconds = milliseconds;
    }
    return made;
  }
  std::atomic<uint32_t> running{0}, most{0}, order{0};
};

TEST_F(CopyThreadsTest, EachTaskRunsOnce) {
  for (const uint32_t count : {0u, 1u, 3u, 1000u}) {
    CopyThreads threads(Log(nullptr, nullptr), count);
    threads.set_count(count);
    std::vector<Counted> work = tasks(300);
    for (uint32_t round = 1; round <= 3; ++round) {
      for (Counted &task : work) threads.submit(&task);
      for (Counted &task : work) {
        threads.wait(&task);
        EXPECT_TRUE(threads.is_done(&task));
        EXPECT_EQ(task.runs, round);
      }
    }
  }
}

TEST_F(CopyThreadsTest, OneThreadKeepsTheOrder) {
  CopyThreads threads(Log(nullptr, nullptr), 1);
  std::vector<Counted> work = tasks(100);
  for (Counted &task : work) threads.submit(&task);
  threads.wait(&work.back());
  for (uint32_t i = 0; i < work.size(); ++i) EXPECT_EQ(work[i].place, i);
}

TEST_F(CopyThreadsTest, NoMoreThreadsThanAskedFor) {
  CopyThreads threads(Log(nullptr, nullptr), 2);
  std::vector<Counted> work = tasks(20, 2);
  for (Counted &task : work) threads.submit(&task);
  for (Counted &task : work) threads.wait(&task);
  EXPECT_LE(most, 2u);
}

TEST_F(CopyThreadsTest, StopFinishesWhatWasSubmitted) {
  CopyThreads threads(Log(nullptr, nullptr), 2);
  for (uint32_t round = 1; round <= 2; ++round) {  // threads start again after a stop
    std::vector<Counted> work = tasks(20, 1);
    for (Counted &task : work) threads.submit(&task);
    threads.stop();
    for (Counted &task : work) {
      EXPECT_TRUE(task.is_done);
      EXPECT_EQ(task.runs, 1u);
    }
  }
}

}  // namespace
}  // namespace gmm::test
