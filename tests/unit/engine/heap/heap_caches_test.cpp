// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/heap_caches.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

void *alloc(Heap &heap, uint64_t size, gmm_stream stream = kDefaultStream) {
  void *block = nullptr;
  EXPECT_TRUE(cached_alloc(heap, size, 0, stream, &block).ok()) << last_message();
  return block;
}

uint32_t caches_of(Heap &heap) {
  uint32_t count = 0;
  heap.caches.for_each([&](HeapCache &) { ++count; });
  return count;
}

TEST(HeapCaches, AThreadHasOneCacheAndItsCountersOutliveIt) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  EXPECT_TRUE(heap->caches.empty());
  void *kept = nullptr;
  std::thread([&] {
    kept = alloc(*heap, 1000);
    EXPECT_TRUE(cached_free(engine.core, alloc(*heap, 5000), kDefaultStream).ok());
    EXPECT_EQ(caches_of(*heap), 1u);
  }).join();
  EXPECT_TRUE(heap->caches.empty());
  const HeapTotals ended = heap->caches.totals();
  EXPECT_EQ(ended.allocations, 2u);
  EXPECT_EQ(ended.frees, 1u);
  EXPECT_EQ(ended.live_blocks, 1u);
  EXPECT_EQ(ended.live_bytes, 1000u);
  EXPECT_TRUE(cached_free(engine.core, kept, kDefaultStream).ok());
  EXPECT_EQ(heap->caches.totals().live_bytes, 0u);
  EXPECT_GE(heap->caches.totals().peak_live, 1000u);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(HeapCaches, ADrainReachesTheCachesOfOtherThreads) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::atomic<int> step{0};
  std::thread other([&] {
    EXPECT_TRUE(cached_free(engine.core, alloc(*heap, 1000), kDefaultStream).ok());
    step = 1;
    while (step != 2) std::this_thread::yield();
    // The cache is usable again after the revocation.
    EXPECT_TRUE(cached_free(engine.core, alloc(*heap, 1000), kDefaultStream).ok());
  });
  while (step != 1) std::this_thread::yield();
  uint64_t cached = 0;
  heap->caches.for_each([&](HeapCache &cache) { cached += cache.cached_bytes; });
  EXPECT_GT(cached, 0u);
  EXPECT_EQ(heap->caches.drain_transfers(current_thread_id()), 1u) << "one other thread holds free blocks";
  EXPECT_EQ(heap->caches.seen_allocations(), heap->totals().allocations) << "of all threads";
  EXPECT_EQ(heap->caches.seen_frees(), heap->totals().frees);
  heap->caches.drain(nullptr);
  heap->caches.for_each([&](HeapCache &cache) {
    EXPECT_EQ(cache.cached_bytes.load(), 0u);
    EXPECT_FALSE(cache.is_revoked());
  });
  EXPECT_EQ(heap->caches.drain_transfers(current_thread_id()), 0u);
  step = 2;
  other.join();
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(HeapCaches, WhatAPerThreadStreamFreedIsLeftOrListed) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::atomic<int> step{0};
  std::thread other([&] {
    void *block = alloc(*heap, 100 << 10, GMM_STREAM_PER_THREAD);
    EXPECT_TRUE(cached_free(engine.core, block, GMM_STREAM_PER_THREAD).ok());
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  const auto cached = [&] {
    uint64_t bytes = 0;
    heap->caches.for_each([&](HeapCache &cache) { bytes += cache.cached_bytes; });
    return bytes;
  };
  const uint64_t before = cached();
  EXPECT_GT(before, 0u);
  heap->caches.drain(nullptr);
  EXPECT_EQ(cached(), before) << "only its own thread can record an event on that stream";
  Vector<CacheEntry> listed{HostAllocator()};
  heap->caches.drain(&listed);
  EXPECT_EQ(cached(), 0u);
  EXPECT_FALSE(listed.empty());
  heap->put_back(listed.data(), static_cast<uint32_t>(listed.size()), StreamKey{GMM_STREAM_PER_THREAD, 0});
  step = 2;
  other.join();
  EXPECT_TRUE(heap->close(false).ok());
}

// Each has a few free blocks of every class: little for a thread, and much for hundreds of them.
TEST(HeapCaches, IdleThreadsHoldLittleTogether) {
  constexpr uint32_t kThreads = 192;
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    std::atomic<bool> touched{false};
    threads.emplace_back([&] {
      for (uint32_t index = 0; index < kSmallClasses; ++index)
        EXPECT_TRUE(cached_free(engine.core, alloc(*heap, small_class_size(index)), kDefaultStream).ok());
      touched = true;
      while (!over) usleep(1000);
    });
    while (!touched) usleep(100);
  }
  EXPECT_LE(heap->own_quota().held(), GrowthPolicy::kMostIdle * 3);
  over = true;
  for (std::thread &thread : threads) thread.join();
  uint64_t released = 0;
  EXPECT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(HeapCaches, OnlyIdleCachesAreEmptied) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  EXPECT_TRUE(cached_free(engine.core, alloc(*heap, 1000), kDefaultStream).ok());
  const auto cached = [&] {
    uint64_t bytes = 0;
    heap->caches.for_each([&](HeapCache &cache) { bytes += cache.cached_bytes; });
    return bytes;
  };
  const uint64_t before = cached();
  heap->caches.drain_idle(0, 100);
  heap->caches.drain_idle(99, 100);
  EXPECT_EQ(cached(), before) << "the age is not over";
  EXPECT_TRUE(cached_free(engine.core, alloc(*heap, 1000), kDefaultStream).ok());
  heap->caches.drain_idle(100, 100);
  EXPECT_EQ(cached(), before) << "the thread called in between";
  heap->caches.drain_idle(200, 100);
  EXPECT_EQ(cached(), 0u);
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
