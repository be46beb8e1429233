// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/low_water.h"

#include <gtest/gtest.h>

namespace gmm {
namespace {

constexpr uint64_t kAge = 1000;

TEST(LowWaterTest, SaysNothingBeforeAnAgeHasPassed) {
  for (uint64_t step : {1, 7, 100, 249, 250, 251, 400}) {
    LowWater low;
    uint64_t now = 5000;
    while (low.note(500, now, kAge) == 0) {
      now += step;
      ASSERT_LE(now, 5000 + 2 * kAge + step) << step;
    }
    EXPECT_GE(now, 5000 + kAge) << step;
  }
}

TEST(LowWaterTest, TakesTheLeastOfTheAge) {
  LowWater low;
  uint64_t now = 0;
  for (; now <= 3 * kAge; now += 250) low.note(700, now, kAge);
  EXPECT_EQ(low.note(700, now, kAge), 700u);
  // A dip counts for the whole age after it, and no longer than a phase more.
  now += 250;
  EXPECT_EQ(low.note(30, now, kAge), 30u);
  const uint64_t dip = now;
  for (now += 250; now - dip <= kAge - 250; now += 250) EXPECT_EQ(low.note(700, now, kAge), 30u) << now - dip;
  EXPECT_EQ(low.note(700, dip + kAge + 250, kAge), 700u);
}

TEST(LowWaterTest, CountsBytesThatCameAndWent) {
  LowWater low;
  uint64_t now = 0;
  for (; now <= 2 * kAge; now += 250) low.note(100, now, kAge);
  low.add(40);
  EXPECT_EQ(low.note(140, now += 1, kAge), 140u);
  low.subtract(100);
  EXPECT_EQ(low.note(40, now += 1, kAge), 40u);
  low.subtract(1000);
  EXPECT_EQ(low.note(0, now += 1, kAge), 0u);
}

TEST(LowWaterTest, AnotherAgeStartsAnew) {
  LowWater low;
  uint64_t now = 0;
  for (; now <= 2 * kAge; now += 250) low.note(100, now, kAge);
  EXPECT_EQ(low.note(100, now, 2 * kAge), 0u);
  for (uint64_t end = now + 2 * kAge; now < end; now += 100) EXPECT_EQ(low.note(100, now, 2 * kAge), 0u);
}

TEST(LowWaterTest, TheShortestAgeHasAPhase) {
  EXPECT_EQ(LowWater::phase(1), 1u);
  EXPECT_EQ(LowWater::phase(5), 2u);
  EXPECT_EQ(LowWater::phase(UINT64_MAX - 1), UINT64_MAX / 4 + 1);
}

}  // namespace
}  // namespace gmm
