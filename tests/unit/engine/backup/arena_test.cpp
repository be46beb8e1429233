// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/arena.h"

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kSegment = BackupArena::kSegment;
constexpr uint64_t kNoLimit = 1024 * kMiB;

class ArenaTest : public testing::Test {
 public:
  ArenaTest() { engine.backend->pose_as(GMM_BACKEND_CUDA); }
  uint64_t pins() { return engine.backend->count("pin"); }
  uint64_t unpins() { return engine.backend->count("unpin"); }

  Engine engine;
  CopyThreads threads{Log(nullptr, nullptr), 3};
  BackupArena arena{engine.core, threads};
};

TEST_F(ArenaTest, PlansSegmentsUpToTheLimit) {
  const uint64_t limit = kSegment + kSegment / 2;
  uint64_t offset = 0, next = 0;
  for (uint32_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(arena.allocate(4 * kMiB, next, limit, &offset)) << i;
    EXPECT_EQ(offset, next) << "neighbours lie together, over the border of segments too";
    next = offset + 4 * kMiB;
  }
  EXPECT_FALSE(arena.allocate(4096, 0, limit, &offset));
  EXPECT_EQ(arena.bytes(), 0u) << "planned segments have no memory";
  EXPECT_FALSE(arena.is_ready(0, 1));
  ASSERT_TRUE(arena.make_ready(Device{0}, 0, limit).ok()) << last_message();
  EXPECT_TRUE(arena.is_ready(0, limit));
  EXPECT_EQ(arena.bytes(), limit);
  EXPECT_EQ(pins(), 2u);
  std::memset(arena.address(0), 1, limit);
  EXPECT_EQ(BackupArena::left_in_segment(kSegment - 1), 1u);
  EXPECT_EQ(BackupArena::left_in_segment(kSegment), kSegment);
  arena.clear();
  EXPECT_EQ(unpins(), 2u);
  EXPECT_EQ(arena.bytes(), 0u);
}

TEST_F(ArenaTest, CancelLeavesAllocatedSegmentsPlanned) {
  uint64_t offset = 0, gone = 0;
  ASSERT_TRUE(arena.allocate(kSegment, 0, 2 * kSegment, &gone));
  ASSERT_TRUE(arena.allocate(kMiB, gone + kSegment, 2 * kSegment, &offset));
  arena.free(gone, kSegment);
  arena.cancel_planned();
  ASSERT_TRUE(arena.make_ready(Device{0}, offset, kMiB).ok()) << last_message();
  EXPECT_EQ(arena.bytes(), kSegment);
  EXPECT_TRUE(arena.allocate(kSegment, 0, 2 * kSegment, &gone)) << "the cancelled segment counts no more";
}

TEST_F(ArenaTest, TrimReturnsSegmentsThatHoldNothing) {
  uint64_t first = 0, second = 0;
  ASSERT_TRUE(arena.allocate(kSegment, 0, kNoLimit, &first));
  ASSERT_TRUE(arena.allocate(kMiB, first + kSegment, kNoLimit, &second));
  ASSERT_TRUE(arena.make_ready(Device{0}, first, kSegment + kMiB).ok()) << last_message();
  EXPECT_EQ(arena.trim(), 0u);
  *arena.address(second) = 7;
  arena.free(first, kSegment);
  EXPECT_EQ(arena.trim(), kSegment);
  EXPECT_EQ(*arena.address(second), 7);
  arena.free(second, kMiB);
  // A segment that the driver does not unlock stays, and serves the next save.
  engine.backend->refuse(1, "unpin");
  EXPECT_EQ(arena.trim(), 0u);
  EXPECT_EQ(arena.bytes(), kSegment);
  ASSERT_TRUE(arena.allocate(kMiB, second, kNoLimit, &first));
  EXPECT_EQ(first, second);
  EXPECT_TRUE(arena.is_ready(first, kMiB));
  arena.free(first, kMiB);
  EXPECT_EQ(arena.trim(), kSegment);
  EXPECT_EQ(arena.bytes(), 0u);
}

}  // namespace
}  // namespace gmm::test
