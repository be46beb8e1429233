// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/growth_policy.h"

#include <gtest/gtest.h>

namespace gmm {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSecond = 1'000'000'000;

TEST(GrowthPolicyTest, NothingMovesInsideTheAllowance) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.to_move(100 * kMiB, 20 * kMiB, 120 * kMiB), 0u);
  EXPECT_EQ(policy.to_move(0, 20 * kMiB, 20 * kMiB), 0u);
}

TEST(GrowthPolicyTest, MemoryOverTheAllowanceMoves) {
  GrowthPolicy policy;
  const uint64_t peak = 128 * kMiB, allowed = GrowthPolicy::least_allowance(peak);
  EXPECT_EQ(policy.to_move(allowed, 20 * kMiB, peak), 20 * kMiB);
  EXPECT_EQ(policy.to_move(allowed - 5 * kMiB, 20 * kMiB, peak), 15 * kMiB);
  EXPECT_EQ(policy.to_move(2 * allowed, 20 * kMiB, peak), 20 * kMiB) << "never more than is needed";
}

TEST(GrowthPolicyTest, MovesEndWithTheirBudgetAndComeBackWithBlocks) {
  GrowthPolicy policy;
  uint64_t moves = 0;
  while (policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) != 0) {
    policy.moved(2 * kMiB);
    ASSERT_LT(++moves, 100'000u);
  }
  EXPECT_GT(moves, 100u) << "a start is not hampered";
  for (uint64_t blocks = 0; policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) == 0; ++blocks) {
    policy.worked(blocks, 0, blocks * kSecond);
    ASSERT_LT(blocks, 10'000u);
  }
}

// A heap whose blocks come from thread caches grows as seldom as one that is asked for each of them works little.
TEST(GrowthPolicyTest, AMoveIsEarnedByTheWorkOfSomeBlocks) {
  GrowthPolicy policy;
  while (policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) != 0) policy.moved(2 * kMiB);
  constexpr uint64_t kBlocks = 100'000;
  uint64_t moves = 0;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    policy.worked(block, 0, block * kSecond);
    if (policy.to_move(300 * kMiB, 2 * kMiB, 100 * kMiB) == 0) continue;
    policy.moved(2 * kMiB);
    ++moves;
  }
  EXPECT_GT(moves, kBlocks / 100);
  EXPECT_LT(moves, kBlocks / 25) << "the driver's calls are few beside the program's";
  // Counters of threads are read one after the other, and may seem to go back.
  policy.worked(0, 0, kBlocks * kSecond);
  policy.worked(UINT64_MAX, 0, 2 * kBlocks * kSecond);
  EXPECT_EQ(policy.allowance(100 * kMiB), GrowthPolicy::least_allowance(100 * kMiB)) << "no more than the budget";
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
}

// A program whose every step needs the same move gets so much more memory that it needs none, and not all at once.
TEST(GrowthPolicyTest, MovesThatComeAgainAndAgainAreBoughtOff) {
  GrowthPolicy policy;
  const uint64_t peak = 8000 * kMiB, least = GrowthPolicy::least_allowance(peak),
                 most = GrowthPolicy::largest_allowance(peak);
  EXPECT_EQ(most, 9000 * kMiB);
  uint64_t moves = 0, before = least, rises = 0, largest_rise = 0;
  for (; policy.to_move(most - 1, 2 * kMiB, peak) != 0 && before < most; ++moves) {
    ASSERT_LT(moves, 100'000u);
    policy.moved(24 * kMiB);
    const uint64_t now = policy.allowance(peak);
    ASSERT_GE(now, before);
    if (now != before) {
      if (rises++ == 0) {
        EXPECT_GT(moves, 500u) << "at first memory is worth more";
      }
      if (now - before > largest_rise) largest_rise = now - before;
    }
    before = now;
  }
  EXPECT_EQ(before, most);
  EXPECT_LT(largest_rise, (most - least) / 100);
  policy.worked(1'000'000, 0, 100 * kSecond);
  EXPECT_EQ(policy.allowance(peak), least) << "later moves are cheap again";
}

TEST(GrowthPolicyTest, ADeviceThatIsBehindMakesRoomForMore) {
  GrowthPolicy policy;
  const uint64_t peak = 8000 * kMiB;
  EXPECT_EQ(policy.to_move(8500 * kMiB, 1000 * kMiB, peak), 1000 * kMiB);
  policy.is_behind(true);
  EXPECT_EQ(policy.to_move(8000 * kMiB, 1000 * kMiB, peak), 0u);
  EXPECT_EQ(policy.to_move(8500 * kMiB, 1000 * kMiB, peak), 500 * kMiB);
  policy.is_behind(false);
  EXPECT_EQ(policy.to_move(8500 * kMiB, 1000 * kMiB, peak), 1000 * kMiB);
}

TEST(GrowthPolicyTest, AHeapThatOnlyGrowsTakesSteps) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.to_take(0, 2 * kMiB, 2 * kMiB, 0), 2 * kMiB) << "the first block is not made more of";
  EXPECT_EQ(policy.to_take(8 * kMiB, 2 * kMiB, 10 * kMiB, 0), 8 * kMiB);
  EXPECT_EQ(policy.to_take(400 * kMiB, 2 * kMiB, 402 * kMiB, 0), 24 * kMiB);
  EXPECT_EQ(policy.to_take(9600 * kMiB, 2 * kMiB, 9602 * kMiB, 0), 50 * kMiB);
  EXPECT_EQ(policy.to_take(400 * kMiB, 64 * kMiB, 464 * kMiB, 0), 64 * kMiB);
}

TEST(GrowthPolicyTest, AfterAFreeItTakesWhatTheAllowanceLeaves) {
  GrowthPolicy policy;
  policy.worked(1, 1, 0);
  const uint64_t peak = 1280 * kMiB;  // 10 MiB of allowance
  EXPECT_EQ(policy.to_take(1276 * kMiB, 4 * kMiB, peak, 0), 14 * kMiB);
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 0), 4 * kMiB);
  policy.grew();
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 0), 24 * kMiB) << "a sequence of growths without a free again";
  policy.worked(2, 2, 0);
  EXPECT_EQ(policy.to_take(1290 * kMiB, 4 * kMiB, peak, 64 * kMiB), 64 * kMiB) << "the heap's own minimum holds";
}

TEST(GrowthPolicyTest, BeforeAnythingWasFreedAVeryLargeBlockGetsLargeExtents) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.largest_extent(0, 256 * kMiB), 1024 * kMiB);
  policy.grew();
  EXPECT_EQ(policy.largest_extent(4096 * kMiB, 4096 * kMiB), 1024 * kMiB) << "growing does not end it";
  EXPECT_EQ(policy.largest_extent(4096 * kMiB, 255 * kMiB), GrowthPolicy::largest_extent(4096 * kMiB));
  policy.worked(1, 1, 0);
  EXPECT_EQ(policy.largest_extent(0, 512 * kMiB), 10 * kMiB) << "what is free may have to be moved";
}

TEST(GrowthPolicyTest, ExtentsAreSmallBesideTheHeapOnceBlocksComeAndGo) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 24 * kMiB);
  policy.worked(1000, 1000, 0);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 2 * kMiB);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 512 * kMiB), 10 * kMiB) << "a large block lies in about 48 at most";
  EXPECT_EQ(policy.largest_extent(7680 * kMiB, 64 * kMiB), 20 * kMiB);
  EXPECT_EQ(policy.largest_extent(7679 * kMiB, 64 * kMiB), 18 * kMiB) << "a multiple of what the driver maps";
  EXPECT_EQ(policy.extent_size(7680 * kMiB, 48 * kMiB, 48 * kMiB), 16 * kMiB) << "equal ones";
  EXPECT_EQ(policy.extent_size(16448 * kMiB, 16384 * kMiB, 0), 42 * kMiB) << "beside what is held with them";
  EXPECT_EQ(policy.largest_extent(1024 * 1024 * kMiB, 64 * kMiB), 256 * kMiB);
  for (int i = 0; i < 16; ++i) policy.grew();
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 24 * kMiB) << "a model is loaded";
  policy.worked(1000, 1001, 0);
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 2 * kMiB);
  policy.grew();
  EXPECT_EQ(policy.largest_extent(1024 * kMiB, 64 * kMiB), 24 * kMiB)
      << "one block that was freed is no more than that";
}

TEST(GrowthPolicyTest, ThePeakIsRemembered) {
  GrowthPolicy policy;
  EXPECT_EQ(policy.peak(10, 5), 10u);
  EXPECT_EQ(policy.peak(10, 50), 50u);
  EXPECT_EQ(policy.peak(10, 20), 50u);
}

TEST(GrowthPolicyTest, StreamsAreAskedWhileThereIsBudget) {
  GrowthPolicy policy;
  ASSERT_TRUE(policy.may_ask());
  for (int i = 0; policy.may_ask(); ++i) {
    policy.asked(4);
    ASSERT_LT(i, 10'000);
  }
  for (int i = 0; !policy.may_ask(); ++i) {
    policy.took(kMiB);
    ASSERT_LT(i, 10'000);
  }
}

}  // namespace
}  // namespace gmm
