// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// Memory that a heap grew behind that of another stream is ordered for the stream that grew it, and for no third.
TEST(Heap, TheRestOfARunThatGrewStillWaits) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const StreamKey a{engine.stream(), 0}, b{engine.stream(), 0}, c{engine.stream(), 0};
  std::atomic<bool> go{false};
  const CacheEntry first = taken(*heap, 2 << 20, a);
  ASSERT_TRUE(engine.backend
                  ->stream_call(
                      Device{0}, a.stream,
                      [](void *flag) {
                        while (!static_cast<std::atomic<bool> *>(flag)->load()) {
                        }
                      },
                      &go)
                  .ok());
  put(*heap, first, a);
  // 3 MiB: the 2 MiB of stream a and 2 MiB behind it; 1 MiB is left.
  const CacheEntry second = taken(*heap, 3 << 20, b);
  EXPECT_EQ(second.block, first.block);
  put(*heap, second, b);
  CacheEntry third;
  EXPECT_TRUE(take(*heap, 1 << 20, c, false, &third).ok());
  EXPECT_EQ(third.block, nullptr) << "memory of stream a was given to stream c without a wait";
  go = true;
  EXPECT_TRUE(engine.backend->synchronize(Device{0}).ok());
  EXPECT_TRUE(heap->close(true).ok());
}

// A server: weights, and tensors that grow at each step, where each step takes the new tensor before the old one goes.
TEST(Heap, GrowingTensorsHoldLittleMoreThanIsLiveForFewDriverCalls) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  uint64_t live = 0, peak = 0;
  const auto take_counted = [&](uint64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
    return taken(*heap, bytes);
  };
  const auto put_counted = [&](const CacheEntry &block, uint64_t bytes) {
    live -= bytes;
    put(*heap, block);
  };
  std::vector<CacheEntry> weights;
  for (int i = 0; i < 100; ++i) weights.push_back(take_counted(5 * kMiB));
  constexpr uint64_t kTensors = 40, kPasses = 2, kSteps = 100;
  const uint64_t calls[] = {1200, 100};
  for (uint64_t pass = 0; pass < kPasses; ++pass) {
    const auto count = [&] {
      return engine.backend->count("create") + engine.backend->count("map") + engine.backend->count("unmap");
    };
    const uint64_t before = count();
    uint64_t size = 5 * kMiB / 4;
    std::vector<CacheEntry> tensors;
    for (uint64_t i = 0; i < kTensors; ++i) tensors.push_back(take_counted(size));
    for (uint64_t step = 0; step < kSteps; ++step) {
      const uint64_t grown = size + 48 * 1024;
      for (CacheEntry &tensor : tensors) {
        const CacheEntry longer = take_counted(grown);
        put_counted(tensor, size);
        tensor = longer;
        const CacheEntry scores = take_counted(grown), product = take_counted(2 * grown);
        put_counted(scores, grown);
        put_counted(product, 2 * grown);
      }
      size = grown;
    }
    EXPECT_LT(heap->own_quota().held(), peak + peak * 3 / 100) << "pass " << pass;
    EXPECT_LT(count() - before, calls[pass]) << "pass " << pass;
    for (const CacheEntry &tensor : tensors) put_counted(tensor, size);
  }
  check_heap(engine, *heap);
  for (const CacheEntry &block : weights) put(*heap, block);
  EXPECT_TRUE(heap->close(false).ok());
}

// The number of extents is what a pause pays for. Small blocks that a growth takes back from the caches are no frees.
TEST(Heap, AModelThatIsLoadedComesInFewExtents) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::vector<void *> blocks;
  const auto load = [&](uint64_t bytes) {
    ASSERT_TRUE(cached_alloc(*heap, bytes, 0, GMM_STREAM_DEFAULT, &blocks.emplace_back()).ok()) << last_message();
  };
  load(100);
  ASSERT_TRUE(cached_free(engine.core, blocks[0], GMM_STREAM_DEFAULT).ok());
  blocks.clear();
  for (int layer = 0; layer < 64; ++layer) {
    for (int i = 0; i < 4; ++i) load(1000 << i);
    for (const uint64_t size : {2, 2, 2, 2, 6, 6, 6}) load(size * kMiB);
  }
  EXPECT_LT(heap->totals().extents, 110u);
  for (void *block : blocks) ASSERT_TRUE(cached_free(engine.core, block, GMM_STREAM_DEFAULT).ok());
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
