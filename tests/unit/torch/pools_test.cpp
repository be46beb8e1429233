// SPDX-License-Identifier: Apache-2.0
// The private pools of gmm's allocator for PyTorch, over streams and events of the host backend. The pools never touch
// their memory, so the segments are addresses alone.
#include "pools.hpp"

#include <gmm/gmm.h>
#include <gtest/gtest.h>

#include <future>

namespace gmm_torch {
namespace {

constexpr uint64_t kPoolMiB = 1 << 20;
constexpr PoolId kPool = {0, 7}, kOther = {0, 8};

class PoolsTest : public ::testing::Test, public Backing {
 protected:
  void SetUp() override {
    gmm_context_desc desc{};
    desc.struct_size = sizeof desc;
    desc.backend = GMM_BACKEND_HOST;
    ASSERT_EQ(gmm_context_create(&desc, &context_), GMM_OK);
    ASSERT_EQ(gmm_stream_create(context_, nullptr, &stream_), GMM_OK);
    ASSERT_EQ(gmm_stream_create(context_, nullptr, &side_), GMM_OK);
    attached = context_;
  }

  void TearDown() override {
    for (PoolBlock *block : held_) pools_.free(block, false);
    pools_.release(kPool);
    pools_.release(kOther);
    pools_.give(pools_.collect());
    EXPECT_EQ(segments_, 0);
    EXPECT_EQ(gmm_stream_destroy(context_, stream_), GMM_OK);
    EXPECT_EQ(gmm_stream_destroy(context_, side_), GMM_OK);
    EXPECT_EQ(gmm_context_release(context_), GMM_OK);
  }

  void *take(uint64_t size, const std::shared_ptr<void> &source, gmm_stream) override {
    source_seen_ = source;
    if (size > most_) return nullptr;
    ++segments_;
    return reinterpret_cast<void *>(next_ += 1 << 30);
  }
  void give(void *, uint64_t, const std::shared_ptr<void> &) override { --segments_; }
  void freed(const PoolBlock &block) override { freed_.push_back(block.address); }

  PoolBlock *allocate(uint64_t size, PoolId id = kPool, gmm_stream stream = nullptr) {
    PoolBlock *block = pools_.allocate(id, size, stream != nullptr ? stream : stream_, false);
    if (block != nullptr) held_.insert(block);
    return block;
  }

  bool free(PoolBlock *block, bool capturing = false) {
    held_.erase(block);
    return pools_.free(block, capturing);
  }

  bool restore(const PoolState &state) {
    std::vector<PoolBlock *> made;
    before_.clear();
    if (!pools_.restore(state, &before_, &made)) return false;
    held_ = {made.begin(), made.end()};
    return true;
  }

  void synchronize(gmm_stream stream) { ASSERT_EQ(gmm_stream_synchronize(context_, stream), GMM_OK); }

  // Every segment's parts in order, without gaps, and no two free neighbours.
  void check_segments() {
    pools_.each_segment([](const Pool &, const Segment &segment, const std::vector<Part> &parts) {
      uint64_t at = segment.address;
      bool was_free = false;
      for (const Part &part : parts) {
        EXPECT_EQ(part.address, at);
        EXPECT_FALSE(was_free && !part.active);
        was_free = !part.active;
        at += part.size;
      }
      EXPECT_EQ(at, segment.address + segment.size);
    });
  }

  gmm_context *context_ = nullptr;
  gmm_stream stream_ = nullptr, side_ = nullptr;
  Pools pools_{0, *this};
  int segments_ = 0;
  uint64_t most_ = UINT64_MAX, next_ = 0;
  std::set<PoolBlock *> held_;  // for the end of the test
  std::vector<void *> before_;  // live before restore()
  std::vector<uint64_t> freed_;
  std::shared_ptr<void> source_seen_;
};

TEST_F(PoolsTest, SmallBlocksShareASegmentAndLargeOnesDivideTheirs) {
  pools_.retain(kPool);
  PoolBlock *a = allocate(100), *b = allocate(kPoolMiB / 2), *c = allocate(3 * kPoolMiB), *d = allocate(5 * kPoolMiB);
  EXPECT_EQ(a->size, 512u);
  EXPECT_EQ(b->address, a->address + 512);
  EXPECT_EQ(d->address, c->address + 3 * kPoolMiB);
  EXPECT_EQ(segments_, 2);
  check_segments();
  for (PoolBlock *block : {b, d, a, c}) {
    EXPECT_TRUE(free(block));
    check_segments();
  }
  EXPECT_EQ(pools_.live(kPool).size(), 0u);
}

TEST_F(PoolsTest, AFreedBlockReturnsOnItsStreamOnly) {
  pools_.retain(kPool);
  PoolBlock *a = allocate(4 * kPoolMiB);
  const uint64_t address = a->address;
  EXPECT_TRUE(free(a));
  EXPECT_NE(allocate(4 * kPoolMiB, kPool, side_)->address, address);
  EXPECT_EQ(allocate(4 * kPoolMiB)->address, address);
}

TEST_F(PoolsTest, ABlockWaitsForTheStreamThatRecordedIt) {
  pools_.retain(kPool);
  std::promise<void> go;  // keeps the stream busy
  ASSERT_EQ(
      gmm_stream_call(
          context_, side_, [](void *promise) { static_cast<std::promise<void> *>(promise)->get_future().wait(); }, &go),
      GMM_OK);
  PoolBlock *a = allocate(2 * kPoolMiB);
  const uint64_t address = a->address;
  pools_.record(a, side_);
  EXPECT_FALSE(free(a));
  EXPECT_NE(allocate(2 * kPoolMiB)->address, address);
  EXPECT_TRUE(freed_.empty());
  go.set_value();
  synchronize(side_);
  EXPECT_EQ(allocate(2 * kPoolMiB)->address, address);
  EXPECT_EQ(freed_, (std::vector<uint64_t>{address}));
}

TEST_F(PoolsTest, ACaptureDefersTheEvents) {
  pools_.retain(kPool);
  PoolBlock *a = allocate(2 * kPoolMiB);
  const uint64_t address = a->address;
  pools_.record(a, side_);
  EXPECT_FALSE(free(a, true));
  PoolBlock *b = pools_.allocate(kPool, 2 * kPoolMiB, stream_, true);
  EXPECT_NE(b->address, address);
  EXPECT_TRUE(freed_.empty());
  EXPECT_TRUE(free(b));
  const uint64_t first = allocate(2 * kPoolMiB)->address;  // records the event
  synchronize(side_);
  EXPECT_TRUE(first == address || allocate(2 * kPoolMiB)->address == address);
  EXPECT_EQ(freed_, (std::vector<uint64_t>{address}));
}

TEST_F(PoolsTest, ACheckpointReturns) {
  pools_.retain(kPool);
  PoolBlock *a = allocate(1000), *b = allocate(2000), *c = allocate(3 * kPoolMiB);
  const uint64_t address_a = a->address, address_b = b->address, address_c = c->address;
  free(b);
  const PoolState state = pools_.checkpoint(kPool);
  // Other blocks, and a newer segment.
  EXPECT_EQ(allocate(1500)->address, address_b);
  const uint64_t newer = allocate(64 * kPoolMiB)->address;
  free(a);
  ASSERT_TRUE(restore(state));
  EXPECT_EQ(before_.size(), 3u);
  EXPECT_EQ(held_.size(), 2u);
  check_segments();
  std::set<uint64_t> live;
  for (void *memory : pools_.live(kPool)) live.insert(reinterpret_cast<uintptr_t>(memory));
  EXPECT_EQ(live, (std::set<uint64_t>{address_a, address_c}));
  EXPECT_EQ(allocate(2000)->address, address_b);
  EXPECT_EQ(allocate(64 * kPoolMiB)->address, newer);
  check_segments();
}

TEST_F(PoolsTest, ACheckpointWaitsForTheStreamsOfFreedBlocks) {
  pools_.retain(kPool);
  const PoolState state = pools_.checkpoint(kPool);
  PoolBlock *a = allocate(1000);
  pools_.record(a, side_);
  EXPECT_FALSE(free(a, true));
  ASSERT_TRUE(restore(state));
  EXPECT_TRUE(before_.empty() && held_.empty());
  EXPECT_EQ(freed_.size(), 1u);
  check_segments();
}

TEST_F(PoolsTest, ACheckpointWhoseMemoryIsGoneIsRefused) {
  pools_.retain(kPool);
  PoolBlock *a = allocate(1000);
  const PoolState state = pools_.checkpoint(kPool);
  free(a);
  pools_.release(kPool);
  pools_.give(pools_.collect());
  pools_.retain(kPool);
  EXPECT_FALSE(restore(state));
  EXPECT_TRUE(before_.empty());
}

TEST_F(PoolsTest, AFullDeviceGetsTheSmallerSegmentAndThenThePoolsThatLend) {
  pools_.retain(kPool);
  most_ = 4 * kPoolMiB;
  PoolBlock *a = allocate(3 * kPoolMiB);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->segment->size, 4 * kPoolMiB);
  EXPECT_EQ(allocate(5 * kPoolMiB), nullptr);
  free(a);
  PoolId from;
  EXPECT_EQ(pools_.borrow(2 * kPoolMiB, stream_, &from), nullptr);
  pools_.configure(kPool, [](Pool &pool) { pool.use_on_oom = true; });
  PoolBlock *b = pools_.borrow(2 * kPoolMiB, stream_, &from);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(from, kPool);
  free(b);
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
