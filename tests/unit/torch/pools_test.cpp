// SPDX-License-Identifier: Apache-2.0
// The private pools of gmm's allocator for PyTorch, where a test of PyTorch's functions needs a GPU: the options of a
// torch.cuda.MemPool, other streams, and a device that is full. test_torch.py has the rest. The pools never
// touch their memory, so the segments are addresses alone.
#include "pools.hpp"

#include <gtest/gtest.h>

namespace gmm_torch {
namespace {

constexpr uint64_t kPoolMiB = 1 << 20;
constexpr PoolId kPool = {0, 7}, kOther = {0, 8};

class PoolsTest : public ::testing::Test, public Backing {
 protected:
  void *take(uint64_t size, const std::shared_ptr<void> &source, gmm_stream) override {
    source_seen_ = source;
    return size > most_ ? nullptr : reinterpret_cast<void *>(next_ += 1 << 30);
  }
  void freed(const PoolBlock &) override {}

  PoolBlock *allocate(uint64_t size, PoolId id = kPool, gmm_stream stream = GMM_STREAM_DEFAULT) {
    return pools_.allocate(id, size, stream);
  }

  Pools pools_{0, *this};
  uint64_t most_ = UINT64_MAX, next_ = 0;
  std::shared_ptr<void> source_seen_;
};

TEST_F(PoolsTest, AFreedBlockReturnsOnItsStreamOnly) {
  PoolBlock *a = allocate(4 * kPoolMiB);
  const uint64_t address = a->address;
  EXPECT_TRUE(pools_.free(a));
  EXPECT_NE(allocate(4 * kPoolMiB, kPool, GMM_STREAM_PER_THREAD)->address, address);
  EXPECT_EQ(allocate(4 * kPoolMiB)->address, address);
}

TEST_F(PoolsTest, AFullDeviceGetsTheSmallerSegmentAndThenThePoolsThatLend) {
  most_ = 4 * kPoolMiB;
  PoolBlock *a = allocate(3 * kPoolMiB);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->segment->size, 4 * kPoolMiB);
  EXPECT_EQ(allocate(5 * kPoolMiB), nullptr);
  EXPECT_TRUE(pools_.free(a));
  PoolId from;
  EXPECT_EQ(pools_.borrow(2 * kPoolMiB, GMM_STREAM_DEFAULT, &from), nullptr);
  pools_.configure(kPool, [](Pool &pool) { pool.use_on_oom = true; });
  ASSERT_NE(pools_.borrow(2 * kPoolMiB, GMM_STREAM_DEFAULT, &from), nullptr);
  EXPECT_EQ(from, kPool);
}

TEST_F(PoolsTest, NoSplitGivesEachBlockItsSegment) {
  pools_.configure(kPool, [](Pool &pool) { pool.no_split = true; });
  PoolBlock *a = allocate(3 * kPoolMiB);
  EXPECT_EQ(a->size, 4 * kPoolMiB);
  EXPECT_NE(a->segment, allocate(3 * kPoolMiB)->segment);
}

TEST_F(PoolsTest, SegmentsComeFromThePoolsSource) {
  const auto source = std::make_shared<int>(5);
  pools_.configure(kPool, [&](Pool &pool) { pool.source = source; });
  allocate(100);
  EXPECT_EQ(source_seen_, source);
  allocate(100, kOther);
  EXPECT_EQ(source_seen_, nullptr);
}

}  // namespace
}  // namespace gmm_torch
