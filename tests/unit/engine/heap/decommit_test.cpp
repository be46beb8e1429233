// SPDX-License-Identifier: Apache-2.0
// The rounds run by a clock of the test's own. The test of the thread polls until a long deadline.
#include "engine/heap/decommit.h"

#include <dirent.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kAge = 1000;

std::atomic<uint32_t> g_warnings{0};
void count_warnings(void *, uint32_t, const char *message) {
  if (std::strstr(message, "Idle memory could not be given back") != nullptr) ++g_warnings;
}

// Opens what a stream waits for.
class StreamGate {
 public:
  StreamGate(Engine &engine, gmm_stream stream) {
    EXPECT_TRUE(engine.backend
                    ->stream_call(
                        Device{0}, stream,
                        [](void *flag) {
                          while (!static_cast<std::atomic<bool> *>(flag)->load()) usleep(100);
                        },
                        &open_)
                    .ok());
  }
  ~StreamGate() { open(); }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

uint32_t threads_named(const std::string &wanted) {
  uint32_t count = 0;
  DIR *tasks = opendir("/proc/self/task");
  while (const dirent *entry = readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name) && name == wanted) ++count;
  }
  closedir(tasks);
  return count;
}

class DecommitTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    g_warnings = 0;
    ASSERT_TRUE(heaps.add(*heap));
  }
  void TearDown() override {
    decommit.stop();
    EXPECT_TRUE(heap->close(true).ok());
  }
  void *alloc(uint64_t size, gmm_stream stream = GMM_STREAM_DEFAULT) {
    void *block = nullptr;
    EXPECT_TRUE(cached_alloc(*heap, size, 0, stream, &block).ok()) << last_message();
    return block;
  }
  void release(void *block, gmm_stream stream = GMM_STREAM_DEFAULT) {
    EXPECT_TRUE(cached_free(engine.core, block, stream).ok()) << last_message();
  }
  // Blocks of the central heap, past the calling thread's cache.
  CacheEntry take(uint64_t size, StreamKey key = kKey) {
    CacheEntry taken;
    EXPECT_TRUE(test::take(*heap, size, key, true, &taken).ok()) << last_message();
    return taken;
  }
  void put(const CacheEntry &entry, StreamKey key = kKey) { heap->put_back(&entry, 1, key); }
  // Rounds at each quarter of the age, up to `until`.
  void rounds(uint64_t until) {
    for (; now <= until; now += kAge / 4) decommit.round(now, kAge);
  }
  uint64_t held() { return heap->own_quota().held(); }
  // Calls that take memory from the driver or give it back.
  uint64_t driver_calls() {
    uint64_t sum = 0;
    for (const char *name : {"create", "map", "unmap", "release", "allocate", "deallocate"})
      sum += engine.backend->count(name);
    return sum;
  }

  Engine engine{uint64_t{4} << 30, Log(count_warnings, nullptr)};
  std::unique_ptr<Heap> heap = make_heap(engine, GetParam());
  HeapSet heaps{engine.core.allocator};
  Decommit decommit{engine.core, heaps};
  uint64_t now = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, DecommitTest, testing::Values(Kind::kVmm, Kind::kDevice, Kind::kHost, Kind::kManaged),
                         [](const auto &info) { return std::to_string(static_cast<uint32_t>(info.param)); });

TEST_P(DecommitTest, WhatIsFreeForTheAgeGoes) {
  std::vector<CacheEntry> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(take(5 * kMiB));
  rounds(3 * kAge);
  const uint64_t used = held();
  ASSERT_GE(used, 100 * kMiB);
  for (const CacheEntry &block : blocks) put(block);
  const uint64_t freed = now;
  rounds(freed + kAge - 1);
  EXPECT_EQ(held(), used) << "before the age nothing goes";
  rounds(freed + kAge + kAge / 2);
  EXPECT_EQ(held(), 0u);
  check_heap(engine, *heap);
}

TEST_P(DecommitTest, AnIdleThreadsCacheComesBackAndAnActiveOnesStays) {
  std::atomic<int> step{0};
  std::thread idle([&] {
    std::vector<void *> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(alloc(100000 + static_cast<uint64_t>(i) * 100000));
    for (void *block : blocks) release(block);
    step = 1;
    while (step != 2) usleep(100);
    release(alloc(5000));  // its cache was emptied under it
  });
  while (step != 1) usleep(100);
  const uint64_t filled = held();
  ASSERT_GT(filled, 30 * kMiB);
  for (int i = 0; i < 100; ++i) release(alloc(200000));  // large blocks pass the caches by when the heap grew just now
  void *mine = alloc(200000);
  release(mine);
  for (; now < kAge; now += kAge / 4) {
    decommit.round(now, kAge);
    void *again = alloc(200000);
    EXPECT_EQ(again, mine) << "a thread that works keeps its cache";
    release(again);
    EXPECT_GE(held(), filled);
  }
  for (; now < 3 * kAge; now += kAge / 4) {
    void *again = alloc(200000);
    EXPECT_EQ(again, mine);
    release(again);
    decommit.round(now, kAge);
  }
  EXPECT_LE(held(), GrowthPolicy::largest_extent(0)) << "only the active thread's block holds memory";
  EXPECT_GT(held(), 0u);
  rounds(now + 2 * kAge);
  EXPECT_EQ(held(), 0u) << "now it is idle, too";
  step = 2;
  idle.join();
  check_heap(engine, *heap);
}

TEST_P(DecommitTest, SteadyUseMakesNoDriverCalls) {
  std::mt19937 random(7);
  const auto period = [&] {
    // Every size up to the peak, and nothing at all, at every place of the period.
    CacheEntry large = take(96 * kMiB);
    void *small = alloc(1 + random() % 3000000);
    decommit.round(now += kAge / 8, kAge);
    release(small);
    put(large);
    decommit.round(now += kAge / 8, kAge);
    CacheEntry first = take(40 * kMiB), second = take(50 * kMiB);
    decommit.round(now += kAge / 8, kAge);
    put(first);
    put(second);
    decommit.round(now += kAge / 8, kAge);
  };
  for (int i = 0; i < 20; ++i) period();
  const uint64_t before = driver_calls(), used = held();
  for (int i = 0; i < 200; ++i) period();
  EXPECT_EQ(driver_calls(), before) << "steady use must not go to the driver and back";
  EXPECT_EQ(held(), used);
  rounds(now + 2 * kAge);
  EXPECT_EQ(held(), 0u);
}

TEST_P(DecommitTest, NeverMoreGoesThanWasFreeAllTheTime) {
  // 64 MiB come and go within the age; the rest of 160 MiB is not used.
  std::vector<CacheEntry> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(take(4 * kMiB));
  for (const CacheEntry &block : blocks) put(block);
  for (int i = 0; i < 40; ++i) {
    blocks.clear();
    for (int j = 0; j < 16; ++j) blocks.push_back(take(4 * kMiB));
    decommit.round(now += kAge / 4, kAge);
    for (const CacheEntry &block : blocks) put(block);
    decommit.round(now += kAge / 4, kAge);
    ASSERT_GE(held(), 64 * kMiB);
  }
  EXPECT_LE(held(), 64 * kMiB + 32 * kMiB) << "what is over the working set went";
  const uint64_t before = driver_calls();
  for (int j = 0; j < 16; ++j) blocks[static_cast<size_t>(j)] = take(4 * kMiB);
  EXPECT_EQ(driver_calls(), before);
  for (const CacheEntry &block : blocks) put(block);
}

TEST_P(DecommitTest, MemoryWhoseStreamIsNotDoneStaysAndNobodyWaits) {
  const gmm_stream stream = engine.stream();
  const CacheEntry block = take(64 * kMiB, StreamKey{stream});
  StreamGate gate(engine, stream);
  put(block, StreamKey{stream});
  rounds(5 * kAge);  // would hang if it waited
  EXPECT_GE(held(), 64 * kMiB);
  gate.open();
  ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, stream).ok());
  rounds(now + kAge);
  EXPECT_EQ(held(), 0u);
}

TEST_P(DecommitTest, NothingGoesDuringDeferAndCapture) {
  put(take(64 * kMiB));
  void *block = alloc(3 * kMiB);
  release(block);
  engine.core.defer_depth = 1;
  rounds(3 * kAge);
  EXPECT_GE(held(), 64 * kMiB);
  engine.core.defer_depth = 0;
  engine.backend->capture(true);
  rounds(6 * kAge);
  EXPECT_GE(held(), 64 * kMiB);
  engine.backend->capture(false);
  rounds(9 * kAge);
  EXPECT_EQ(held(), 0u);
}

TEST_P(DecommitTest, ARoundPassesByAHeapThatAnOperationHas) {
  put(take(8 * kMiB));
  heap->lock_for_operation();
  std::thread([&] { rounds(3 * kAge); }).join();
  heap->mutex.unlock();
  EXPECT_GE(held(), 8 * kMiB);
  rounds(now + 2 * kAge);
  EXPECT_EQ(held(), 0u);
}

TEST_P(DecommitTest, ARefusalOfTheDriverLosesNothingAndIsLoggedOnce) {
  const bool vmm = GetParam() == Kind::kVmm;
  for (const char *operation : {"unmap", "release", "deallocate"}) {
    if ((std::strcmp(operation, "deallocate") != 0) != vmm) continue;
    for (uint64_t k = 1, refusals = 1; refusals != 0; ++k) {
      std::vector<CacheEntry> blocks;
      for (int i = 0; i < 10; ++i) blocks.push_back(take(3 * kMiB));
      for (const CacheEntry &block : blocks) put(block);
      const CacheEntry kept = take(kMiB);
      std::memset(kept.block, 42, kMiB);
      engine.backend->refuse(k, operation, true);
      rounds(now + 3 * kAge);
      refusals = engine.backend->refused();
      EXPECT_TRUE(refusals != 0 || k > 3) << operation << " " << k;
      engine.backend->refuse(0);
      check_heap(engine, *heap);
      for (uint64_t i = 0; i < kMiB; ++i) ASSERT_EQ(static_cast<unsigned char *>(kept.block)[i], 42);
      // The memory is good: it serves again, and goes when the driver takes it.
      const CacheEntry again = take(20 * kMiB);
      std::memset(again.block, 7, 20 * kMiB);
      put(again);
      put(kept);
      rounds(now + 3 * kAge);
      EXPECT_EQ(held(), 0u) << operation << " " << k;
    }
    const uint64_t made = engine.backend->count(vmm ? "create" : "allocate");
    EXPECT_EQ(engine.backend->count(vmm ? "release" : "deallocate"), made) << "every handle went back";
  }
  // A handle that is not taken back is already unmapped; that is remembered, and said, elsewhere.
  EXPECT_EQ(g_warnings.load(), 1u);
}

TEST_P(DecommitTest, ADedicatedBlockGoesWhenItsStreamIsDone) {
  const gmm_stream stream = engine.stream();
  CacheEntry entry;
  ASSERT_TRUE(take_dedicated(*heap, 4 * kMiB, &entry).ok());
  StreamGate gate(engine, stream);
  put(entry, StreamKey{stream});
  rounds(3 * kAge);
  EXPECT_GE(held(), 4 * kMiB);
  gate.open();
  ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, stream).ok());
  rounds(now + kAge);
  EXPECT_EQ(held(), 0u);
}

TEST_P(DecommitTest, AHeapThatEndsMeanwhileIsLetBe) {
  auto other = make_heap(engine, GetParam());
  ASSERT_TRUE(heaps.add(*other));
  put(take(8 * kMiB));
  rounds(kAge);
  // While memory is released, nobody may end the heap.
  engine.backend->before(GetParam() == Kind::kVmm ? "unmap" : "deallocate",
                         [&] { EXPECT_FALSE(heaps.remove_unless_visited(*heap)); });
  rounds(3 * kAge);
  EXPECT_EQ(held(), 0u);
  ASSERT_TRUE(heaps.remove_unless_visited(*other));
  rounds(now + kAge);
}

TEST_P(DecommitTest, TheThreadGivesMemoryBackByItselfAndEnds) {
  EXPECT_TRUE(soon([&] { return threads_named("gmm decommit") == 0; }));
  EXPECT_EQ(decommit.age(), GMM_DECOMMIT_NEVER);
  put(take(64 * kMiB));
  std::atomic<bool> end{false}, filled{false};
  std::thread idle([&] {
    for (int i = 0; i < 10; ++i) release(alloc(kMiB));
    filled = true;
    while (!end) usleep(100);
  });
  while (!filled) usleep(100);
  ASSERT_TRUE(decommit.set(10).ok());
  EXPECT_EQ(decommit.age(), 10u);
  EXPECT_TRUE(soon([&] { return threads_named("gmm decommit") == 1; }));
  EXPECT_TRUE(soon([&] { return held() == 0; }));
  ASSERT_TRUE(decommit.set(INT64_MAX).ok());  // longer than anybody waits
  EXPECT_TRUE(soon([&] { return threads_named("gmm decommit") == 1; }));
  put(take(8 * kMiB));
  ASSERT_TRUE(decommit.set(5).ok());  // and it notices that the time is shorter now
  EXPECT_TRUE(soon([&] { return held() == 0; }));
  ASSERT_TRUE(decommit.set(GMM_DECOMMIT_DEFAULT).ok());
  EXPECT_EQ(decommit.age(), GMM_DECOMMIT_NEVER);
  EXPECT_TRUE(soon([&] { return threads_named("gmm decommit") == 0; }));
  end = true;
  idle.join();
}

TEST_P(DecommitTest, ItMayBeSetAndEndedWhileThreadsWork) {
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<unsigned char *, uint64_t>> live;
      while (!end) {
        if (live.size() < 20 && random() % 2 == 0) {
          const uint64_t size = 1 + random() % (uint64_t{256} << (random() % 14));
          unsigned char *block = static_cast<unsigned char *>(alloc(size));
          block[0] = block[size - 1] = static_cast<unsigned char>(size);
          live.emplace_back(block, size);
        } else if (!live.empty()) {
          const auto [block, size] = live.back();
          ASSERT_EQ(block[0], static_cast<unsigned char>(size));
          ASSERT_EQ(block[size - 1], static_cast<unsigned char>(size));
          release(block);
          live.pop_back();
        }
        if (random() % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      for (const auto &[block, size] : live) release(block);
    });
  std::thread setter([&] {
    std::mt19937 random(99);
    while (!end) ASSERT_TRUE(decommit.set(random() % 3 == 0 ? GMM_DECOMMIT_NEVER : 1 + random() % 3).ok());
  });
  for (int i = 0; i < 40; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    engine.core.defer_depth.fetch_add(1);
    decommit.wait_for_round();
    engine.core.defer_depth.fetch_sub(1);
    ASSERT_TRUE(heap->drain_caches(true).ok());
    const HeapTotals totals = heap->totals();
    ASSERT_LT(totals.free_bytes, uint64_t{1} << 40);
  }
  end = true;
  for (std::thread &thread : threads) thread.join();
  setter.join();
  ASSERT_TRUE(decommit.set(1).ok());
  EXPECT_TRUE(soon([&] { return held() == 0; }));
  decommit.stop();
  check_heap(engine, *heap);
  EXPECT_EQ(heap->totals().live_blocks, 0u);
}

class DecommitVariableTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("GMM_DECOMMIT_AFTER_MS"); }
  Engine engine;
  HeapSet heaps{engine.core.allocator};
};

TEST_F(DecommitVariableTest, SetsTheDefault) {
  for (const char *never : {"", "never"}) {
    setenv("GMM_DECOMMIT_AFTER_MS", never, 1);
    Decommit decommit(engine.core, heaps);
    ASSERT_TRUE(decommit.init().ok());
    ASSERT_TRUE(decommit.set(GMM_DECOMMIT_DEFAULT).ok());
    EXPECT_EQ(decommit.age(), GMM_DECOMMIT_NEVER);
  }
  setenv("GMM_DECOMMIT_AFTER_MS", "123456", 1);
  Decommit decommit(engine.core, heaps);
  ASSERT_TRUE(decommit.init().ok());
  ASSERT_TRUE(decommit.set(7).ok());
  EXPECT_EQ(decommit.age(), 7u) << "the descriptor goes before the environment";
  ASSERT_TRUE(decommit.set(GMM_DECOMMIT_DEFAULT).ok());
  EXPECT_EQ(decommit.age(), 123456u);
  decommit.stop();
}

TEST_F(DecommitVariableTest, RefusesWhatIsNoTime) {
  for (const char *text :
       {"0", "-1", "10s", "soon", " 5", "+5", "1e3", "99999999999999999999", "9223372036854775808"}) {
    setenv("GMM_DECOMMIT_AFTER_MS", text, 1);
    Decommit decommit(engine.core, heaps);
    EXPECT_EQ(decommit.init().code(), GMM_ERROR_INVALID_VALUE) << text;
    EXPECT_NE(std::strstr(last_message(), text), nullptr) << last_message();
  }
}

}  // namespace
}  // namespace gmm::test
