// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_cache.h"

#include <random>
#include <thread>

#include "base/thread.h"
#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

class ThreadCacheTest : public testing::Test {
 protected:
  void *alloc(uint64_t size, gmm_stream stream = GMM_STREAM_DEFAULT, uint64_t alignment = 0) {
    void *block = nullptr;
    EXPECT_TRUE(cached_alloc(*heap, size, alignment, stream, &block).ok()) << last_message();
    return block;
  }
  Status release(void *block, gmm_stream stream = GMM_STREAM_DEFAULT) {
    return cached_free(engine.core, block, stream);
  }
  void expect_empty() {
    const HeapTotals totals = heap->totals();
    EXPECT_EQ(totals.live_blocks, 0u);
    EXPECT_EQ(totals.live_bytes, 0u);
    EXPECT_EQ(totals.allocations, totals.frees);
    EXPECT_TRUE(heap->drain_caches(true).ok());
    check_heap(engine, *heap);
    EXPECT_TRUE(heap->close(false).ok()) << last_message();
    EXPECT_EQ(heap->own_quota().held(), 0u);
  }
  Engine engine;
  std::unique_ptr<Heap> heap = make_heap(engine, Kind::kVmm);
};

// The log may call gmm, whose end of enter() would be taken for that of the call which logs: a revoker would then empty
// the cache beside it. Neither an event nor a wait works on this thread's own stream, so each spill writes to the log.
TEST(ThreadCacheLogTest, TheLogIsCalledWhenTheCacheIsLeft) {
  struct Heard {
    Heap *heap = nullptr;
    uint32_t messages = 0, inside = 0;
  } heard;
  const auto listen = [](void *user, uint32_t, const char *) {
    Heard &heard = *static_cast<Heard *>(user);
    ++heard.messages;
    const HeapCache *cache = heard.heap == nullptr ? nullptr : HeapCache::find(*heard.heap);
    if (cache != nullptr && cache->busy.load() != 0) ++heard.inside;
  };
  Engine engine(uint64_t{4} << 30, Log(listen, &heard));
  const std::unique_ptr<Heap> heap = make_heap(engine, Kind::kVmm);
  heard.heap = heap.get();
  for (const uint64_t size : {uint64_t{1000}, uint64_t{1} << 20}) {
    std::vector<void *> blocks(200);
    for (void *&block : blocks) ASSERT_TRUE(cached_alloc(*heap, size, 0, GMM_STREAM_PER_THREAD, &block).ok());
    engine.backend->refuse(1, nullptr, true);
    heard.messages = 0;
    for (void *block : blocks) ASSERT_TRUE(cached_free(engine.core, block, GMM_STREAM_PER_THREAD).ok());
    EXPECT_NE(heard.messages, 0u) << size;
    EXPECT_EQ(heard.inside, 0u) << size;
    engine.backend->refuse(0);
  }
  // An alloc gives back the large blocks of another stream, of which none fits.
  engine.backend->refuse(1, nullptr, true);
  heard.messages = 0;
  void *larger = nullptr;
  EXPECT_FALSE(cached_alloc(*heap, uint64_t{30} << 20, 0, GMM_STREAM_DEFAULT, &larger).ok());
  EXPECT_NE(heard.messages, 0u);
  EXPECT_EQ(heard.inside, 0u);
  engine.backend->refuse(0);
  EXPECT_TRUE(engine.backend->synchronize(Device{0}).ok());
  EXPECT_TRUE(heap->drain_caches(true).ok());
  EXPECT_TRUE(heap->close(false).ok()) << last_message();
}

// A stale pointer into spans that others recycle: refused, or the free of a block that starts there.
TEST_F(ThreadCacheTest, FreesOfStalePointersNeverCorrupt) {
  std::atomic<bool> stop{false};
  char *base = static_cast<char *>(alloc(8 << 20));
  ASSERT_TRUE(release(base).ok());
  std::thread stale([&] {
    std::mt19937 random(1);
    // Never a multiple of the unit: no block starts there.
    while (!stop) {
      EXPECT_FALSE(release(base + (random() % (8 << 20) | 1)).ok());
    }
  });
  std::mt19937 random(2);
  std::vector<void *> live;
  for (int i = 0; i < 20000; ++i) {
    if (live.size() < 20 && random() % 2 == 0) {
      live.push_back(alloc(1 + random() % (uint64_t{256} << (random() % 13))));
    } else if (!live.empty()) {
      ASSERT_TRUE(release(live.back()).ok());
      live.pop_back();
    }
    if (i % 64 == 0) {
      ASSERT_TRUE(heap->drain_caches(false).ok());
    }
  }
  stop = true;
  stale.join();
  for (void *block : live) ASSERT_TRUE(release(block).ok());
  expect_empty();
}

}  // namespace
}  // namespace gmm::test
