// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/range_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gmm::test {
namespace {

TEST(RangeAllocator, NeighboursLieTogether) {
  RangeAllocator ranges{HostAllocator()};
  ASSERT_TRUE(ranges.add(0, 100));
  uint64_t a = 0, b = 0, c = 0;
  ASSERT_TRUE(ranges.allocate(10, 50, &a));
  EXPECT_EQ(a, 50u);
  ASSERT_TRUE(ranges.allocate(10, a + 10, &b));
  EXPECT_EQ(b, 60u);
  ASSERT_TRUE(ranges.allocate(45, 70, &c));
  EXPECT_EQ(c, 0u);
  EXPECT_FALSE(ranges.allocate(31, 0, &c));
  ranges.free(50, 10);
  ranges.free(60, 10);
  EXPECT_TRUE(ranges.is_free(45, 55));
  EXPECT_FALSE(ranges.is_free(44, 2));
  ASSERT_TRUE(ranges.remove(80, 10));
  EXPECT_FALSE(ranges.is_free(79, 2));
  EXPECT_EQ(ranges.free_bytes(), 45u);
  EXPECT_EQ(ranges.allocated_bytes(), 45u);
}

TEST(RangeAllocator, RandomRangesNeverOverlap) {
  RangeAllocator ranges{HostAllocator()};
  constexpr uint64_t kAll = 4096;
  for (uint64_t at = 0; at < kAll; at += 512) ASSERT_TRUE(ranges.add(at, 512));
  std::mt19937 random(3);
  std::map<uint64_t, uint64_t> taken;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    if (taken.empty() || random() % 2 == 0) {
      const uint64_t size = 1 + random() % 64;
      uint64_t offset = 0;
      if (!ranges.allocate(size, random() % kAll, &offset)) continue;
      auto next = taken.lower_bound(offset);
      ASSERT_TRUE(next == taken.end() || next->first >= offset + size);
      ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= offset);
      ASSERT_LE(offset + size, kAll);
      taken[offset] = size;
      bytes += size;
    } else {
      auto it = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      ranges.free(it->first, it->second);
      bytes -= it->second;
      taken.erase(it);
    }
    ASSERT_EQ(ranges.allocated_bytes(), bytes);
    ASSERT_EQ(ranges.free_bytes(), kAll - bytes);
  }
  for (const auto &[offset, size] : taken) ranges.free(offset, size);
  EXPECT_TRUE(ranges.is_free(0, kAll));
}

// free() needs no host memory.
TEST(RangeAllocator, FreeCannotFail) {
  struct Budget {
    int64_t left = 0;
    static void *allocate(void *user, uint64_t size, uint64_t) {
      return static_cast<Budget *>(user)->left-- > 0 ? std::malloc(size) : nullptr;
    }
    static void deallocate(void *, void *memory, uint64_t) { std::free(memory); }
  } budget;
  budget.left = 1000;
  RangeAllocator ranges{HostAllocator(&Budget::allocate, &Budget::deallocate, &budget)};
  ASSERT_TRUE(ranges.add(0, 1000));
  uint64_t offset = 0;
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(ranges.allocate(1, i, &offset));
  budget.left = 0;
  for (uint64_t i = 0; i < 1000; i += 2) ranges.free(i, 1);
  for (uint64_t i = 1; i < 1000; i += 2) ranges.free(i, 1);
  EXPECT_EQ(ranges.free_bytes(), 1000u);
  EXPECT_TRUE(ranges.is_free(0, 1000));
}

}  // namespace
}  // namespace gmm::test
