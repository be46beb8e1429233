// SPDX-License-Identifier: Apache-2.0
#include "base/object_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

namespace gmm {
namespace {

struct Counted {
  Counted() { ++made; }
  ~Counted() { ++ended; }
  int value = 0;
  static inline std::atomic<int> made{0}, ended{0};
};

TEST(ObjectPool, ObjectsAreDistinctAndComeBackAsTheyWere) {
  Counted::made = Counted::ended = 0;
  {
    ObjectPool<Counted> pool{HostAllocator()};
    std::set<Counted *> taken;
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(taken.insert(pool.take()).second);
    Counted *one = *taken.begin();
    one->value = 5;
    pool.put(one);
    EXPECT_EQ(one->value, 5) << "a reader may still look at it";
    EXPECT_EQ(pool.take(), one);
    EXPECT_EQ(one->value, 5);
    EXPECT_EQ(Counted::ended, 0);
  }
  EXPECT_GE(Counted::made, 100);
  EXPECT_EQ(Counted::made, Counted::ended);
}

TEST(ObjectPool, WantOfMemoryGivesNull) {
  ObjectPool<Counted> pool{HostAllocator([](void *, uint64_t, uint64_t) -> void * { return nullptr; },
                                         [](void *, void *, uint64_t) {}, nullptr)};
  EXPECT_EQ(pool.take(), nullptr);
}

TEST(ObjectPool, WhoMayNotWaitTakesWhatWasProvided) {
  static int calls = 0;
  calls = 0;
  ObjectPool<Counted> pool{HostAllocator(
      [](void *, uint64_t size, uint64_t alignment) -> void * {
        ++calls;
        return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
      },
      [](void *, void *memory, uint64_t) { std::free(memory); }, nullptr)};
  EXPECT_EQ(pool.try_take(), nullptr);
  EXPECT_EQ(calls, 0);
  ASSERT_TRUE(pool.provide(100));
  const int provided = calls;
  std::set<Counted *> taken;
  for (int i = 0; i < 100; ++i) {
    Counted *one = pool.try_take();
    ASSERT_NE(one, nullptr);
    EXPECT_TRUE(taken.insert(one).second);
  }
  EXPECT_EQ(calls, provided);
  for (Counted *one : taken) pool.put(one);
  ASSERT_TRUE(pool.provide(100));
  EXPECT_EQ(calls, provided) << "what came back serves again";
}

TEST(ObjectPool, ThreadsShareIt) {
  ObjectPool<Counted> pool{HostAllocator()};
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t)
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 5000; ++i) {
        Counted *a = pool.take();
        a->value = t;
        Counted *b = pool.take();
        b->value = -t;
        ASSERT_EQ(a->value, t);
        pool.put(a);
        ASSERT_EQ(b->value, -t);
        pool.put(b);
      }
    });
  for (std::thread &thread : threads) thread.join();
}

}  // namespace
}  // namespace gmm
