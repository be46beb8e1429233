// SPDX-License-Identifier: Apache-2.0
#include "base/retired_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

namespace gmm {
namespace {

struct Counts {
  int64_t live = 0;
  bool refuses = false;
};
void *count_allocate(void *user, uint64_t size, uint64_t alignment) {
  Counts &counts = *static_cast<Counts *>(user);
  if (counts.refuses) return nullptr;
  ++counts.live;
  return std::aligned_alloc(alignment, size);
}
void count_deallocate(void *user, void *memory, uint64_t) {
  --static_cast<Counts *>(user)->live;
  std::free(memory);
}

TEST(RetiredMemory, IsReusedInOrderAndOnlyAfterTheQuarantine) {
  Counts counts;
  {
    RetiredMemory retired(HostAllocator(count_allocate, count_deallocate, &counts), 128, 64);
    std::vector<void *> taken;
    for (uint64_t i = 0; i <= RetiredMemory::kQuarantine; ++i) taken.push_back(retired.take());
    for (void *memory : taken) {
      std::memset(memory, 0x5a, 128);
      retired.retire(memory);
    }
    // A reader that comes too late finds what was there, but for the first word.
    for (void *memory : taken) EXPECT_EQ(static_cast<unsigned char *>(memory)[sizeof(void *)], 0x5a);
    EXPECT_EQ(retired.take(), taken[0]);
    void *fresh = retired.take();
    EXPECT_EQ(std::set<void *>(taken.begin(), taken.end()).count(fresh), 0u);
    retired.retire(taken[0]);
    EXPECT_EQ(retired.take(), taken[1]);
    retired.retire(taken[1]);
    retired.retire(fresh);
    EXPECT_EQ(counts.live, static_cast<int64_t>(RetiredMemory::kQuarantine) + 2);
  }
  EXPECT_EQ(counts.live, 0);
}

TEST(RetiredMemory, WantOfHostMemoryIsReported) {
  Counts counts;
  counts.refuses = true;
  RetiredMemory retired(HostAllocator(count_allocate, count_deallocate, &counts), 128, 64);
  EXPECT_EQ(retired.take(), nullptr);
}

}  // namespace
}  // namespace gmm
