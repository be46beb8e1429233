// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_uses.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kBlock = uint64_t{4} << 20;

// A large block over two extents, without a heap around it.
class BlockUsesTest : public testing::Test {
 protected:
  void SetUp() override {
    const uintptr_t base = uintptr_t{1} << 40;
    ASSERT_TRUE(engine.core.page_map.prepare(base, kBlock));
    span.base = base;
    span.size = kBlock;
    span.state = SpanState::kLarge;
    span.slot(0) = kBlock;
    engine.core.page_map.set(base, kBlock, &span);
    for (uint64_t i = 0; i < 2; ++i) {
      extents[i].base = base + i * kBlock / 2;
      extents[i].size = kBlock / 2;
      engine.core.page_map.set_extent(extents[i].base, kBlock / 2, &extents[i]);
    }
    block = CacheEntry{reinterpret_cast<void *>(base), &span.slot(0)};
  }
  void TearDown() override { order.clear(); }
  bool marked() { return (span.slot(0) & kUsedElsewhere) != 0; }
  Engine engine;
  StreamOrder order{engine.core.backend, engine.core.ended_streams, Device{0}, HostAllocator()};
  BlockUses uses{engine.core, order};
  Span span;
  Extent extents[2];
  CacheEntry block{};
  const StreamKey a{engine.stream()}, b{engine.stream()};
};

TEST_F(BlockUsesTest, AnExportHasOneIdUntilItIsExportedAnew) {
  uint64_t id = 7;
  ASSERT_TRUE(uses.mark_exported(block, &id).ok());
  EXPECT_TRUE(marked());
  id = 8;
  ASSERT_TRUE(uses.mark_exported(block, &id).ok());
  EXPECT_EQ(id, 7u);
  uses.export_anew(block.block, 7, 9);
  EXPECT_FALSE(uses.exported_as(block.block, 7));
  EXPECT_TRUE(uses.exported_as(block.block, 9));
  bool held = true;
  ASSERT_TRUE(uses.order_after(block, a, false, &held).ok());
  EXPECT_FALSE(held) << "nobody imported it";
  EXPECT_FALSE(uses.exported_as(block.block, 9));
}

TEST_F(BlockUsesTest, AUseIsNotedOnceHoweverOftenItIsTold) {
  const StreamKey own{GMM_STREAM_PER_THREAD, current_thread_id()};
  uint64_t id = 7;
  for (int i = 0; i < 1000; ++i) {
    for (const StreamKey &key : {b, own, StreamKey{GMM_STREAM_DEFAULT}, StreamKey{GMM_STREAM_LEGACY}})
      ASSERT_TRUE(uses.record(block, key).ok());
    ASSERT_TRUE(uses.mark_exported(block, &id).ok());
  }
  EXPECT_EQ(uses.count(), 4u);
  bool held = true;
  ASSERT_TRUE(uses.order_after(block, a, false, &held).ok());
  EXPECT_EQ(uses.count(), 0u);
}

TEST_F(BlockUsesTest, AFreeLooksAtFewUsesHoweverManyThereAre) {
  constexpr uint32_t kBlocks = 20000;
  std::vector<std::atomic<uint64_t>> slots(kBlocks);
  const auto entry = [&](uint32_t i) {
    return CacheEntry{reinterpret_cast<void *>((uintptr_t{1} << 41) + uint64_t{i} * kGranule), &slots[i]};
  };
  for (uint32_t i = 0; i < kBlocks; ++i) {
    slots[i] = 1;
    ASSERT_TRUE(uses.record(entry(i), a).ok());
    ASSERT_TRUE(uses.record(entry(i), b).ok());
  }
  EXPECT_EQ(uses.count(), 2 * kBlocks);
  EXPECT_LE(uses.longest_list(), 16u);
  for (uint32_t i = 0; i < kBlocks; i += 2) {
    bool held = true;
    ASSERT_TRUE(uses.order_after(entry(i), a, false, &held).ok());
    EXPECT_FALSE(held);
  }
  EXPECT_EQ(uses.count(), kBlocks);
  uses.forget_stream(b.stream);
  EXPECT_EQ(uses.count(), kBlocks / 2);
  EXPECT_LE(uses.longest_list(), 16u);
  for (uint32_t i = 0; i < kBlocks; i += 2) ASSERT_TRUE(uses.record(entry(i), a).ok());  // places are used again
  EXPECT_EQ(uses.count(), kBlocks);
}

TEST_F(BlockUsesTest, PerThreadStreamsOfOtherThreadsAreSeen) {
  const uint64_t self = current_thread_id();
  ASSERT_TRUE(uses.record(block, StreamKey{GMM_STREAM_PER_THREAD, self}).ok());
  EXPECT_FALSE(uses.used_by_other_threads(block.block, self));
  ASSERT_TRUE(uses.record(block, StreamKey{GMM_STREAM_PER_THREAD, self + 1}).ok());
  EXPECT_TRUE(uses.used_by_other_threads(block.block, self));
  uses.clear();
  EXPECT_FALSE(uses.used_by_other_threads(block.block, self));
}

}  // namespace
}  // namespace gmm::test
