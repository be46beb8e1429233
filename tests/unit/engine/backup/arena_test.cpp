// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/arena.h"

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kSegment = BackupArena::kSegment;

TEST(ArenaTest, PlansSegmentsUpToTheLimit) {
  Engine engine;
  CopyThreads threads{Log(nullptr, nullptr), 3};
  BackupArena arena{engine.core, threads};
  const uint64_t limit = kSegment + kSegment / 2;
  uint64_t offset = 0, next = 0;
  for (uint32_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(arena.allocate(4 * kMiB, next, limit, &offset)) << i;
    EXPECT_EQ(offset, next) << "neighbours lie together, over the border of segments too";
    next = offset + 4 * kMiB;
  }
  EXPECT_FALSE(arena.allocate(4096, 0, limit, &offset));
  EXPECT_EQ(arena.bytes(), 0u) << "planned segments have no memory";
  arena.free(0, 4 * kMiB);
  EXPECT_TRUE(arena.allocate(4 * kMiB, next, limit, &offset));
  EXPECT_EQ(offset, 0u);
}

}  // namespace
}  // namespace gmm::test
