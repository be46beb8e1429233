// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/transfer_cache.h"

#include <thread>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

class TransferCacheTest : public testing::Test {
 protected:
  // Free blocks of a class, as a thread cache would hold them.
  std::vector<CacheEntry> small(uint64_t size, uint32_t count) {
    std::vector<CacheEntry> out;
    while (out.size() < count) {
      CacheEntry entries[32];
      uint32_t taken = 0;
      const uint32_t left = count - static_cast<uint32_t>(out.size());
      BlockRequest request;
      request.size = size;
      request.wanted = left < 32 ? left : 32;
      EXPECT_TRUE(heap->take(request, entries, &taken).ok());
      out.insert(out.end(), entries, entries + taken);
    }
    return out;
  }
  std::vector<CacheEntry> large(uint64_t size, uint32_t count) {
    std::vector<CacheEntry> out;
    for (uint32_t i = 0; i < count; ++i) {
      CacheEntry entry;
      EXPECT_TRUE(test::take(*heap, size, kKey, true, &entry).ok());
      out.push_back(entry);
    }
    return out;
  }
  bool put(const std::vector<CacheEntry> &entries, uint64_t bytes, StreamKey key = kKey) {
    return heap->caches().transfers.put(key, bytes, entries.data(), static_cast<uint32_t>(entries.size()));
  }
  void give_back(const std::vector<CacheEntry> &entries) {
    heap->put_back(entries.data(), static_cast<uint32_t>(entries.size()), kKey);
  }
  uint32_t take(uint64_t bytes, StreamKey key = kKey) { return heap->caches().transfers.take(key, bytes, taken); }
  void expect_nothing_lost() {
    EXPECT_TRUE(heap->drain_caches(true).ok());
    EXPECT_EQ(heap->caches().transfers.bytes(), 0u);
    check_heap(engine, *heap);
    EXPECT_TRUE(heap->close(false).ok()) << last_message();
    EXPECT_EQ(heap->own_quota().held(), 0u);
  }

  Engine engine;
  std::unique_ptr<Heap> heap = make_heap(engine, Kind::kVmm);
  CacheEntry taken[TransferCache::kMaxBatch];
};

TEST_F(TransferCacheTest, ItsBytesAreBoundedAndCounted) {
  constexpr uint64_t kSize = uint64_t{4} << 20;
  // All taken first: growth empties the transfer cache.
  std::vector<std::vector<CacheEntry>> batches, refused;
  for (int i = 0; i < 20; ++i) batches.push_back(large(kSize, 4));
  const auto too_large = large(TransferCache::kMaxBatchBytes, 2);
  for (const auto &blocks : batches) {
    const uint64_t before = heap->caches().transfers.bytes();
    if (put(blocks, kSize)) {
      EXPECT_EQ(heap->caches().transfers.bytes(), before + 4 * kSize);
    } else {
      EXPECT_EQ(heap->caches().transfers.bytes(), before);
      refused.push_back(blocks);
    }
  }
  EXPECT_EQ(heap->caches().transfers.bytes(), TransferCache::kBudget);
  EXPECT_EQ(refused.size(), 12u);
  EXPECT_GE(heap->totals().free_bytes, TransferCache::kBudget);
  EXPECT_FALSE(put(too_large, TransferCache::kMaxBatchBytes)) << "a batch has a bound, too";
  for (const auto &blocks : refused) give_back(blocks);
  ASSERT_TRUE(heap->reset().ok());  // the two large ones
  EXPECT_EQ(heap->caches().transfers.bytes(), 0u);
  expect_nothing_lost();
}

TEST_F(TransferCacheTest, BatchesThatNobodyTakesMakeRoomForOthers) {
  // Every place is full of sizes that nobody wants any more.
  for (uint32_t index = 0; index < kSmallClasses; ++index)
    for (int i = 0; i < 16; ++i) {
      const auto blocks = small(small_class_size(index), 2);
      if (!put(blocks, small_class_size(index))) give_back(blocks);
    }
  const uint64_t full = heap->caches().transfers.bytes();
  const auto blocks = large(1 << 20, 8);
  ASSERT_TRUE(put(blocks, 1 << 20));
  EXPECT_LT(heap->caches().transfers.bytes(), full + (8 << 20)) << "others went to the heap";
  EXPECT_EQ(take(1 << 20), 8u);
  give_back(blocks);
  expect_nothing_lost();
}

TEST_F(TransferCacheTest, IdleBatchesGoAfterTheAge) {
  ASSERT_TRUE(put(small(1024, 8), 1024));
  ASSERT_TRUE(put(small(2048, 8), 2048));
  const auto drain_idle = [&](uint64_t now) {
    LockGuard guard(heap->caches().mutex);
    return heap->caches().transfers.drain_idle(now, 100);
  };
  EXPECT_EQ(drain_idle(1000), 0u);
  EXPECT_EQ(drain_idle(1099), 0u);
  ASSERT_EQ(take(2048), 8u);
  ASSERT_TRUE(put(std::vector<CacheEntry>(taken, taken + 8), 2048));
  EXPECT_EQ(drain_idle(1100), 8u * 1024);
  EXPECT_EQ(heap->caches().transfers.bytes(), 8u * 2048) << "it was used since";
  EXPECT_EQ(drain_idle(1199), 0u);
  EXPECT_EQ(drain_idle(1200), 8u * 2048);
  expect_nothing_lost();
}

// They would be more than the stack of the class of their size holds.
TEST_F(TransferCacheTest, SmallBlocksOfLargeAlignmentDoNotGoOver) {
  std::vector<void *> blocks(100);
  for (void *&block : blocks)
    ASSERT_TRUE(cached_alloc(*heap, kMaxSmall, 2 * kGranule, GMM_STREAM_DEFAULT, &block).ok());
  std::thread([&] {
    for (void *block : blocks) EXPECT_TRUE(cached_free(engine.core, block, GMM_STREAM_DEFAULT).ok());
    EXPECT_EQ(heap->caches().transfers.bytes(), 0u);
  }).join();
  EXPECT_EQ(heap->totals().live_blocks, 0u);
  expect_nothing_lost();
}

}  // namespace
}  // namespace gmm::test
