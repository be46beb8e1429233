// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/slabs.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// Room for one slab, without a heap around it.
class SlabsTest : public testing::Test {
 protected:
  void SetUp() override {
    const uintptr_t base = uintptr_t{1} << 40;
    run.base = base;
    run.size = slab_granules(kClass) * kGranule;
    run.region = &region;
    run.streams = 2;
    ASSERT_TRUE(engine.core.page_map.prepare(base, kExtentAlignment));
    ASSERT_TRUE(engine.core.page_map.prepare_granules(base, run.size));
    slab = slabs.make(kClass, run);
    ASSERT_NE(slab, nullptr);
  }
  void TearDown() override {
    slabs.retire(slab);
    EXPECT_EQ(region.live_spans, 0u);
    EXPECT_EQ(slabs.free_bytes(), 0u);
    engine.core.slabs.put(static_cast<SlabSpan *>(slab));
  }

  const uint32_t kClass = small_class(1000);
  const uint32_t kBlocks = slab_blocks(kClass);
  Engine engine;
  Slabs slabs{engine.core, nullptr};
  Region region;
  // Members, as the address sanitizer's stack does not keep a span's alignment.
  Span run;
  Span second;
  Span *slab = nullptr;
};

TEST_F(SlabsTest, ANewSlabHasTheRunsAddressesAndStreams) {
  EXPECT_EQ(slab->begin(), run.begin());
  EXPECT_EQ(slab->bytes(), run.bytes());
  EXPECT_EQ(slabs.free_bytes(), run.bytes());
  EXPECT_EQ(engine.core.page_map.find(reinterpret_cast<void *>(run.end() - 1)), slab);
  EXPECT_EQ(slabs.find(kClass, 2), slab);
  EXPECT_EQ(slabs.find(kClass, 1), nullptr) << "another stream may still use it";
  EXPECT_EQ(slabs.first(kClass), slab);
  EXPECT_EQ(slabs.first(kClass + 1), nullptr);
}

TEST_F(SlabsTest, ASlabIsListedWhileItHasFreeBlocks) {
  std::vector<CacheEntry> blocks(kBlocks);
  EXPECT_EQ(slabs.take(slab, 3, blocks.data()), 3u);
  EXPECT_TRUE(slab->listed);
  EXPECT_EQ(slabs.take(slab, kBlocks, blocks.data() + 3), kBlocks - 3);
  std::set<void *> distinct;
  for (const CacheEntry &entry : blocks) distinct.insert(entry.block);
  EXPECT_EQ(distinct.size(), kBlocks);
  EXPECT_EQ(slabs.first(kClass), nullptr);
  EXPECT_EQ(slab->streams, 0u);
  for (uint32_t i = 0; i + 1 < kBlocks; ++i) {
    EXPECT_FALSE(slabs.put_back(slab, blocks[i].block));
    EXPECT_EQ(slabs.first(kClass), slab);
  }
  EXPECT_TRUE(slabs.put_back(slab, blocks[kBlocks - 1].block)) << "all blocks are free";
}

TEST_F(SlabsTest, ADetachedSlabServesNothingAndCountsForNothing) {
  CacheEntry blocks[2];
  EXPECT_EQ(slabs.take(slab, 2, blocks), 2u);
  const uint64_t before = slabs.free_bytes();
  region.paused = 1;
  slabs.detach(slab);
  EXPECT_EQ(slabs.free_bytes(), 0u);
  EXPECT_FALSE(slabs.put_back(slab, blocks[0].block));
  slabs.list_last(slab);
  EXPECT_EQ(slabs.first(kClass), nullptr);
  region.paused = 0;
  slabs.attach(slab);
  EXPECT_EQ(slabs.find(kClass, ~uint64_t{0}), slab);
  EXPECT_EQ(slabs.free_bytes(), before + small_class_size(kClass));
}

TEST_F(SlabsTest, ASlabThatCannotBeRetiredServesAgainAfterTheOthers) {
  second.base = run.end();
  second.size = run.bytes();
  second.region = &region;
  ASSERT_TRUE(engine.core.page_map.prepare_granules(second.base, second.size));
  Span *newer = slabs.make(kClass, second);
  ASSERT_NE(newer, nullptr);
  EXPECT_EQ(slabs.first(kClass), newer);
  slabs.list_last(newer);
  EXPECT_EQ(slabs.first(kClass), slab);
  slabs.retire(newer);
  engine.core.slabs.put(static_cast<SlabSpan *>(newer));
}

}  // namespace
}  // namespace gmm::test
