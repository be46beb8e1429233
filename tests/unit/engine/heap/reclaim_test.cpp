// SPDX-License-Identifier: Apache-2.0
// Idle memory by the clock of the test; decommit_test.cpp has the thread that asks for it.
#include "engine/heap/reclaim.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

class ReclaimOfKind : public testing::TestWithParam<Kind> {};

TEST_P(ReclaimOfKind, GivesBackUpToABoundAndNothingThatIsLive) {
  Engine engine;
  auto heap = make_heap(engine, GetParam());
  std::vector<CacheEntry> blocks;
  for (int i = 0; i < 6; ++i) {
    CacheEntry entry;
    ASSERT_TRUE(take(*heap, 40 * kMiB, kKey, true, &entry).ok());
    entry.slot->store(1);
    blocks.push_back(entry);
  }
  const uint64_t held = heap->own_quota().held();
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(heap->own_quota().held(), held - released);
  EXPECT_GE(heap->own_quota().held(), 240 * kMiB) << "six blocks are live";
  for (const CacheEntry &block : blocks) put(*heap, block);
  EXPECT_GE(heap->reclaim().releasable(), 240 * kMiB);
  const uint64_t before = heap->own_quota().held();
  released = 0;
  ASSERT_TRUE(heap->reclaim().release(60 * kMiB, true, &released).ok());
  EXPECT_GE(released, 60 * kMiB);
  EXPECT_LT(released, before) << "the bound is passed by less than one extent";
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_EQ(released, before);
  check_heap(engine, *heap);
  EXPECT_TRUE(heap->close(false).ok());
}
INSTANTIATE_TEST_SUITE_P(Kinds, ReclaimOfKind, testing::Values(Kind::kVmm, Kind::kDevice, Kind::kHost));

TEST(Reclaim, WhatAGraphMayUseStays) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 4 * kMiB));
  heap->streams().hold_for_graph();
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(released, 0u);
  heap->end_of_graph();
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(released, 4 * kMiB);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Reclaim, OnlyWhatWasFreeForTheAgeIsIdle) {
  constexpr uint64_t kAge = 100;
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 32 * kMiB));
  Reclaim &reclaim = heap->reclaim();
  uint64_t released = 0, now = 0;
  for (; now < kAge; now += kAge / 4) {
    const uint64_t may_go = reclaim.look_for_idle(now, kAge);
    ASSERT_TRUE(reclaim.release_idle(now, kAge, may_go, UINT64_MAX, &released).ok());
    EXPECT_EQ(released, 0u) << now;
  }
  put(*heap, taken(*heap, 24 * kMiB));  // used in between: only the rest was free all the time
  for (; now < 2 * kAge; now += kAge / 4) {
    const uint64_t may_go = reclaim.look_for_idle(now, kAge);
    ASSERT_TRUE(reclaim.release_idle(now, kAge, may_go, UINT64_MAX, &released).ok());
    EXPECT_LE(released, 8 * kMiB) << now;
  }
  for (; now <= 4 * kAge; now += kAge / 4) {
    const uint64_t may_go = reclaim.look_for_idle(now, kAge);
    ASSERT_TRUE(reclaim.release_idle(now, kAge, may_go, UINT64_MAX, &released).ok());
  }
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
