// SPDX-License-Identifier: Apache-2.0
// How much a heap takes from the driver, and how much it moves instead. tests/api sees only that its memory works.
#include "engine/heap/growth.h"

#include <algorithm>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

TEST(GrowthPolicyTest, MemoryOverTheAllowanceMoves) {
  GrowthPolicy policy;
  const uint64_t peak = 128 * kMiB, allowed = GrowthPolicy::least_allowance(peak);
  EXPECT_EQ(policy.to_move(allowed - 20 * kMiB, 20 * kMiB, peak), 0u);
  EXPECT_EQ(policy.to_move(allowed - 5 * kMiB, 20 * kMiB, peak), 15 * kMiB);
  EXPECT_EQ(policy.to_move(2 * allowed, 20 * kMiB, peak), 20 * kMiB) << "never more than is needed";
  // A device that is behind makes room for more.
  policy.is_behind(true);
  EXPECT_EQ(policy.to_move(GrowthPolicy::largest_allowance(peak) - 5 * kMiB, 20 * kMiB, peak), 15 * kMiB);
}

// However many blocks a program takes, the driver works for a twentieth of the time at most.
TEST(GrowthPolicyTest, MovesOfASecondAreBounded) {
  GrowthPolicy policy;
  while (policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) != 0) policy.moved(2 * kMiB);
  uint64_t moves = 0, blocks = 0;
  for (uint64_t now = kSecond; now < 2 * kSecond; now += 1000) {
    policy.worked(blocks += 100, 0, now);
    for (; policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) != 0; ++moves) policy.moved(2 * kMiB);
  }
  EXPECT_LT(moves, kSecond / 20 / 40'000 + 10);
  EXPECT_GT(moves, kSecond / 20 / 50'000);
  // Counters of threads are read one after the other, and may seem to go back.
  policy.worked(0, 0, 3 * kSecond);
  policy.worked(UINT64_MAX, 0, 100 * kSecond);
  EXPECT_EQ(policy.allowance(100 * kMiB), GrowthPolicy::least_allowance(100 * kMiB)) << "no more than the budget";
}

// A program whose every step needs the same move gets so much more memory that it needs none, and not all at once.
TEST(GrowthPolicyTest, MovesThatComeAgainAndAgainAreBoughtOff) {
  GrowthPolicy policy;
  const uint64_t peak = 8000 * kMiB, least = GrowthPolicy::least_allowance(peak), most = 9000 * kMiB;
  uint64_t moves = 0, before = least, first_rise = 0;
  for (; policy.to_move(most - 1, 2 * kMiB, peak) != 0 && before < most; ++moves) {
    ASSERT_LT(moves, 100'000u);
    policy.moved(24 * kMiB);
    const uint64_t now = policy.allowance(peak);
    ASSERT_GE(now, before);
    ASSERT_LT(now - before, (most - least) / 100);
    if (first_rise == 0 && now != before) first_rise = moves;
    before = now;
  }
  EXPECT_EQ(before, most);
  EXPECT_GT(first_rise, 500u) << "at first memory is worth more";
  policy.worked(1'000'000, 0, 100 * kSecond);
  EXPECT_EQ(policy.allowance(peak), least) << "later moves are cheap again";
}

TEST(GrowthPolicyTest, StepsFollowTheHeapUntilAFreeAndTheAllowanceAfterIt) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.to_take(0, 2 * kMiB, 2 * kMiB, 0), 2 * kMiB) << "the first block is not made more of";
  EXPECT_EQ(policy.to_take(8 * kMiB, 2 * kMiB, 10 * kMiB, 0), 8 * kMiB);
  EXPECT_EQ(policy.to_take(9600 * kMiB, 2 * kMiB, 9602 * kMiB, 0), 50 * kMiB);
  EXPECT_EQ(policy.to_take(400 * kMiB, 64 * kMiB, 464 * kMiB, 0), 64 * kMiB);
  policy.worked(1, 1, 0);
  const uint64_t peak = 1280 * kMiB;  // 10 MiB of allowance
  EXPECT_EQ(policy.to_take(1276 * kMiB, 4 * kMiB, peak, 0), 14 * kMiB);
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 0), 4 * kMiB);
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 64 * kMiB), 64 * kMiB) << "the heap's own minimum holds";
  policy.grew();
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 0), 24 * kMiB) << "a sequence of growths without a free again";
}

TEST(GrowthPolicyTest, ExtentsAreSmallOnceBlocksComeAndGo) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.largest_extent(4096 * kMiB, 256 * kMiB), 1024 * kMiB) << "a model's weights";
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 24 * kMiB);
  policy.worked(1000, 1000, 0);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 2 * kMiB);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 512 * kMiB), 10 * kMiB) << "a large block lies in about 48 at most";
  EXPECT_EQ(policy.largest_extent(7679 * kMiB, 64 * kMiB), 18 * kMiB) << "a multiple of what the driver maps";
  EXPECT_EQ(policy.extent_size(7680 * kMiB, 48 * kMiB, 48 * kMiB), 16 * kMiB) << "equal ones";
  EXPECT_EQ(policy.largest_extent(1024 * 1024 * kMiB, 64 * kMiB), 256 * kMiB);
  for (int i = 0; i < 16; ++i) policy.grew();
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 24 * kMiB) << "a model is loaded";
  policy.worked(1000, 1001, 0);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 2 * kMiB);
}

// A server: weights, and tensors that grow at each step, where each step takes the new tensor before the old one goes.
TEST(Heap, GrowingTensorsHoldLittleMoreThanIsLiveForFewDriverCalls) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  uint64_t live = 0, peak = 0;
  const auto take_counted = [&](uint64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
    return taken(*heap, bytes);
  };
  const auto put_counted = [&](const CacheEntry &block, uint64_t bytes) {
    live -= bytes;
    put(*heap, block);
  };
  std::vector<CacheEntry> weights, tensors;
  for (int i = 0; i < 100; ++i) weights.push_back(take_counted(5 * kMiB));
  for (const uint64_t calls : {1200, 100}) {  // of the first pass, and of a later one
    const auto count = [&] {
      return engine.backend->count("create") + engine.backend->count("map") + engine.backend->count("unmap");
    };
    const uint64_t before = count();
    uint64_t size = 5 * kMiB / 4;
    for (int i = 0; i < 40; ++i) tensors.push_back(take_counted(size));
    for (int step = 0; step < 100; ++step) {
      const uint64_t grown = size + 48 * 1024;
      for (CacheEntry &tensor : tensors) {
        const CacheEntry longer = take_counted(grown);
        put_counted(std::exchange(tensor, longer), size);
        const CacheEntry scores = take_counted(grown), product = take_counted(2 * grown);
        put_counted(scores, grown);
        put_counted(product, 2 * grown);
      }
      size = grown;
    }
    EXPECT_LT(heap->own_quota().held(), peak + peak * 3 / 100);
    EXPECT_LT(count() - before, calls);
    for (const CacheEntry &tensor : tensors) put_counted(tensor, size);
    tensors.clear();
  }
  check_heap(engine, *heap);
  for (const CacheEntry &block : weights) put(*heap, block);
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
