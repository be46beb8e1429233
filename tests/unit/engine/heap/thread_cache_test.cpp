// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_cache.h"

#include <cstring>
#include <mutex>
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

TEST_F(ThreadCacheTest, WhatWasFreedLastIsGivenNextOnTheSameStreamOnly) {
  const gmm_stream other = engine.stream();
  void *block = alloc(1000);
  ASSERT_TRUE(release(block).ok());
  void *next = alloc(1000, other);
  EXPECT_NE(next, block);
  EXPECT_EQ(alloc(1000), block);
  ASSERT_TRUE(release(block).ok());
  ASSERT_TRUE(release(next, other).ok());
  expect_empty();
}

// The log may call gmm, whose end of enter() would be taken for that of the call which logs: a revoker would then empty
// the cache beside it. Neither an event nor a wait works on this thread's own stream, so each spill says so.
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
}

// The place of what was freed last would be taken by what stays, however far up it lies.
TEST_F(ThreadCacheTest, WhileTheHeapGrowsALargeBlockTakesTheLowestPlace) {
  constexpr uint64_t kSize = uint64_t{1} << 20;
  const auto cached = [&] {
    uint64_t bytes = 0;
    heap->caches.for_each([&](HeapCache &cache) { bytes += cache.cached_bytes.load(); });
    return bytes;
  };
  void *low = alloc(kSize), *temporary = alloc(kSize);
  ASSERT_TRUE(release(low).ok());
  void *large = alloc(64 * kSize);  // what the cache had is in the heap now, which grew
  ASSERT_TRUE(release(alloc(kSize)).ok());
  EXPECT_EQ(cached(), 0u);
  ASSERT_TRUE(release(temporary).ok());
  void *stays = alloc(kSize);
  EXPECT_EQ(stays, low);
  ASSERT_TRUE(release(stays).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(release(alloc(kSize)).ok());
  EXPECT_EQ(cached(), kSize) << "the heap did not grow for long";
  ASSERT_TRUE(release(large).ok());
  expect_empty();
}

TEST_F(ThreadCacheTest, EverySizeAndAlignmentIsServedAligned) {
  std::vector<void *> blocks;
  std::mt19937 random(3);
  for (uint64_t alignment = 1; alignment <= kExtentAlignment; alignment *= 2)
    for (uint64_t size : {uint64_t{1}, uint64_t{255}, uint64_t{256}, uint64_t{257}, uint64_t{2049}, uint64_t{4097},
                          uint64_t{16385}, uint64_t{40000}, uint64_t{114689}, kMaxSmall - 1, kMaxSmall, kMaxSmall + 1,
                          uint64_t{1} << 20, (uint64_t{3} << 20) + 5}) {
      void *block = alloc(size, GMM_STREAM_DEFAULT, alignment);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0u) << size << " at " << alignment;
      Span *span = engine.core.page_map.find(block);
      ASSERT_GE(span->block_bytes(), size);
      ASSERT_LE(span->block_bytes(), (size + (alignment < kGranule ? alignment : kGranule)) * 9 / 8 + kGranule)
          << size << " at " << alignment;
      std::memset(block, 1, size);
      blocks.push_back(block);
    }
  check_heap(engine, *heap);
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (void *block : blocks) ASSERT_TRUE(release(block).ok()) << last_message();
  expect_empty();
}

TEST_F(ThreadCacheTest, WrongFreesAreRefusedAndChangeNothing) {
  char *small = static_cast<char *>(alloc(1000));
  char *large = static_cast<char *>(alloc(1 << 20));
  int local = 0;
  EXPECT_EQ(release(&local).code(), GMM_ERROR_UNKNOWN_POINTER);
  for (uint64_t offset : {1, 255, 256, 999}) {
    EXPECT_EQ(release(small + offset).code(), GMM_ERROR_INTERIOR_POINTER) << offset;
    EXPECT_EQ(release(large + offset * 300).code(), GMM_ERROR_INTERIOR_POINTER) << offset;
  }
  // The block before it lies in the cache, and was never given out.
  EXPECT_EQ(release(small - 1024).code(), GMM_ERROR_ALREADY_FREED);
  ASSERT_TRUE(release(small).ok());
  ASSERT_TRUE(release(large).ok());
  EXPECT_EQ(release(small).code(), GMM_ERROR_ALREADY_FREED);
  EXPECT_EQ(release(large).code(), GMM_ERROR_ALREADY_FREED);
  ASSERT_TRUE(heap->drain_caches(true).ok());
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(release(small).code(), GMM_ERROR_UNKNOWN_POINTER);
  EXPECT_EQ(release(large + 4096).code(), GMM_ERROR_UNKNOWN_POINTER);
  expect_empty();
}

// A stale pointer into spans that others recycle meanwhile: refused, or the free of a block that starts there.
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

TEST_F(ThreadCacheTest, ThreadsAllocateFreeForEachOtherAndAreDrained) {
  constexpr int kThreads = 4;
  std::mutex mutex;
  std::vector<std::pair<uint32_t *, uint64_t>> shared;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 8000; ++i) {
        const uint64_t size = 64 + random() % (uint64_t{64} << (random() % 12));
        uint32_t *block = static_cast<uint32_t *>(alloc(size));
        const uint32_t mark = static_cast<uint32_t>(random());
        block[0] = mark;
        block[size / 4 - 1] = mark;
        std::pair<uint32_t *, uint64_t> other{block, size};
        {
          std::lock_guard<std::mutex> guard(mutex);
          if (shared.size() < 100) {
            shared.push_back(other);
            continue;
          }
          std::swap(other, shared[random() % shared.size()]);
        }
        ASSERT_EQ(other.first[0], other.first[other.second / 4 - 1]) << "two blocks overlap";
        ASSERT_TRUE(release(other.first).ok()) << last_message();
      }
      --running;
    });
  while (running != 0) {
    ASSERT_TRUE(heap->drain_caches(true).ok());
    const HeapTotals totals = heap->totals();
    ASSERT_LT(totals.live_bytes, uint64_t{1} << 40);
    ASSERT_LT(totals.peak_live, uint64_t{1} << 40);
    ASSERT_LT(totals.free_bytes, uint64_t{1} << 40);
    uint64_t released = 0;
    ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, false, &released).ok());
    std::this_thread::yield();
  }
  for (std::thread &thread : threads) thread.join();
  for (const auto &block : shared) ASSERT_TRUE(release(block.first).ok());
  expect_empty();
}

TEST_F(ThreadCacheTest, ACacheHasABudget) {
  uint64_t cached = 0;
  const auto look = [&] {
    cached = 0;
    heap->caches.for_each([&](HeapCache &cache) { cached += cache.cached_bytes.load(); });
    return cached;
  };
  std::vector<void *> blocks;
  for (uint64_t size : {kMaxCached, kMaxCached, kMaxCached - kGranule, kMaxCached / 2}) blocks.push_back(alloc(size));
  void *too_large = alloc(kMaxCached + 1);
  for (void *block : blocks) {
    ASSERT_TRUE(release(block).ok());
    EXPECT_LE(look(), kCacheBudget);
    EXPECT_NE(cached, 0u);
  }
  const uint64_t before = look();
  ASSERT_TRUE(release(too_large).ok());
  EXPECT_EQ(look(), before) << "what is above 64 MiB is not kept";
  expect_empty();
}

// A per-thread stream notes what it freed when that leaves the thread's cache: so its events count the batches.
TEST_F(ThreadCacheTest, FreesForAnotherThreadGoBackInBatches) {
  for (const uint64_t size : {uint64_t{1024}, uint64_t{1} << 20}) {
    constexpr uint64_t kBlocks = 960;
    std::vector<void *> blocks;
    for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back(alloc(size));
    const uint64_t before = engine.backend->count("event_record");
    std::thread([&] {
      for (void *block : blocks) ASSERT_TRUE(release(block, GMM_STREAM_PER_THREAD).ok());
    }).join();
    const uint64_t batches = engine.backend->count("event_record") - before;
    EXPECT_GT(batches, 0u);
    // Half a stack of 64, or eight large blocks, and once when the thread ends.
    EXPECT_LE(batches, kBlocks / (size == 1024 ? 32 : 8) + 1) << size;
    ASSERT_TRUE(heap->drain_caches(true).ok());
  }
  expect_empty();
}

TEST_F(ThreadCacheTest, AnEndingThreadReturnsItsCache) {
  void *kept = nullptr;
  std::thread([&] {
    kept = alloc(5000);
    std::vector<void *> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(alloc(3000));
    for (void *block : blocks) ASSERT_TRUE(release(block).ok());
  }).join();
  const HeapTotals totals = heap->totals();
  EXPECT_EQ(totals.live_blocks, 1u);
  EXPECT_EQ(totals.live_bytes, 5000u);
  EXPECT_EQ(totals.allocations, 101u);
  EXPECT_EQ(totals.frees, 100u);
  EXPECT_TRUE(heap->caches.empty());
  ASSERT_TRUE(release(kept).ok());
  expect_empty();
}

TEST_F(ThreadCacheTest, AThreadMayOutliveTheHeap) {
  std::atomic<int> step{0};
  std::thread thread([&] {
    void *block = alloc(100);
    ASSERT_TRUE(release(block).ok());
    step = 1;
    while (step != 2) usleep(100);
  });
  while (step != 1) usleep(100);
  expect_empty();
  heap.reset();
  heap = make_heap(engine, Kind::kVmm);  // in the same slot of the threads' tables
  step = 2;
  thread.join();
  ASSERT_TRUE(release(alloc(100)).ok());
  expect_empty();
}

// Frees on a thread's own stream are ordered when the thread ends or another one empties its cache.
TEST_F(ThreadCacheTest, PerThreadFreesAreWaitedFor) {
  for (const bool drained : {false, true}) {
    std::atomic<bool> open{false};
    std::atomic<int> step{0};
    void *block = nullptr;
    const gmm_stream other = engine.stream();
    const auto ended = [&] { return heap->caches.empty(); };
    std::thread thread([&] {
      block = alloc(1 << 20, GMM_STREAM_PER_THREAD);
      ASSERT_TRUE(engine.backend
                      ->stream_call(
                          Device{0}, GMM_STREAM_PER_THREAD,
                          [](void *user) {
                            while (!static_cast<std::atomic<bool> *>(user)->load()) usleep(100);
                          },
                          &open)
                      .ok());
      ASSERT_TRUE(release(block, GMM_STREAM_PER_THREAD).ok());
      step = 1;
      while (drained && step != 2) usleep(100);
    });
    while (step != 1) usleep(100);
    if (drained) {
      std::thread opener([&] {
        usleep(30000);
        open = true;
      });
      ASSERT_TRUE(heap->drain_caches(true).ok());
      EXPECT_TRUE(open) << "the drain did not wait for the thread's stream";
      opener.join();
    } else {
      // The thread's end may wait for its stream, or note an event: the memory is ordered either way.
      if (soon(ended, std::chrono::milliseconds(100))) {
        CacheEntry entry;
        ASSERT_TRUE(take(*heap, 1 << 20, StreamKey{other}, false, &entry).ok());
        EXPECT_NE(entry.block, block);
        if (entry.block != nullptr) heap->put_back(&entry, 1, StreamKey{other});
      }
      open = true;
    }
    step = 2;
    thread.join();
    EXPECT_TRUE(ended());
  }
  expect_empty();
}

TEST_F(ThreadCacheTest, ThreadsThatEndLeaveNoStreamsBehind) {
  for (int i = 0; i < 200; ++i)
    std::thread([&] {
      ASSERT_TRUE(release(alloc(1000, GMM_STREAM_PER_THREAD), GMM_STREAM_PER_THREAD).ok());
      ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, GMM_STREAM_PER_THREAD).ok());
    }).join();
  LockGuard guard(heap->mutex);
  EXPECT_LT(heap->streams().known_streams(), 20u);
}

TEST_F(ThreadCacheTest, RecordedUsesOrderTheFree) {
  const gmm_stream user = engine.stream(), third = engine.stream();
  std::atomic<bool> open{false};
  void *block = alloc(1 << 20);
  Span *span = engine.core.page_map.find(block);
  ASSERT_TRUE(engine.backend
                  ->stream_call(
                      Device{0}, user,
                      [](void *flag) {
                        while (!static_cast<std::atomic<bool> *>(flag)->load()) usleep(100);
                      },
                      &open)
                  .ok());
  ASSERT_TRUE(heap->record_use(CacheEntry{block, &span->slot(0)}, user).ok());
  ASSERT_TRUE(release(block).ok());
  // The freeing stream waits for the user now.
  NativeEvent event = nullptr;
  bool passed = true;
  ASSERT_TRUE(engine.backend->event_create(Device{0}, &event).ok());
  ASSERT_TRUE(engine.backend->event_record(event, Device{0}, GMM_STREAM_DEFAULT).ok());
  ASSERT_TRUE(engine.backend->event_query(event, &passed).ok());
  EXPECT_FALSE(passed);
  open = true;
  ASSERT_TRUE(engine.backend->event_synchronize(event).ok());
  ASSERT_TRUE(engine.backend->event_destroy(event).ok());
  // A stream that goes is forgotten with its uses.
  block = alloc(1 << 20);
  span = engine.core.page_map.find(block);
  ASSERT_TRUE(heap->record_use(CacheEntry{block, &span->slot(0)}, third).ok());
  ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, third).ok());
  heap->forget_stream(third);
  ASSERT_TRUE(engine.backend->stream_destroy(third).ok());
  ASSERT_TRUE(release(block).ok()) << last_message();
  expect_empty();
}

// A thread that ends waits for the lock of a heap, as during a pause of that heap's tag. Nobody else waits for it: not
// who makes or ends another heap, nor another thread's end.
TEST_F(ThreadCacheTest, AThreadThatEndsKeepsNobodyWaiting) {
  std::atomic<pid_t> ending{0};
  std::unique_ptr<Heap> other = make_heap(engine, Kind::kVmm);
  std::atomic<bool> locked{false};
  std::thread thread([&] {
    ASSERT_TRUE(release(alloc(1000)).ok());
    ending = -1;
    ASSERT_TRUE(soon([&] { return locked.load(); }));
    ending = thread_number();
  });
  ASSERT_TRUE(soon([&] { return ending == -1; }));
  heap->mutex.lock();
  locked = true;
  ASSERT_TRUE(soon([&] { return ending > 0 && sleeps(ending); }));
  std::atomic<int> steps{0};
  std::thread rest([&] {
    make_heap(engine, Kind::kVmm).reset();
    ++steps;
    std::thread([&] {
      void *block = nullptr;
      EXPECT_TRUE(cached_alloc(*other, 1000, 0, kDefaultStream, &block).ok());
      EXPECT_TRUE(cached_free(engine.core, block, kDefaultStream).ok());
    }).join();
    ++steps;
    EXPECT_TRUE(other->close(false).ok());
    other.reset();
    ++steps;
  });
  EXPECT_TRUE(soon([&] { return steps == 3; })) << "step " << steps;
  heap->mutex.unlock();
  thread.join();
  rest.join();
  expect_empty();
}

// Who waits for the owner of a cache sleeps. One that spins, or yields to threads of its own priority, keeps an owner
// of a lower one from ever leaving.
TEST_F(ThreadCacheTest, WhoEmptiesACacheSleepsUntilItsOwnerLeft) {
  ASSERT_TRUE(release(alloc(1000)).ok());
  HeapCache *cache = HeapCache::find(*heap);
  ASSERT_NE(cache, nullptr);
  ASSERT_TRUE(cache->try_enter());
  std::atomic<pid_t> visitor{0};
  std::thread thread([&] {
    visitor = thread_number();
    EXPECT_TRUE(heap->drain_caches(false).ok());
  });
  EXPECT_TRUE(soon([&] { return cache->is_revoked(); }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(soon([&] { return sleeps(visitor); }, kPatience / 10)) << i;
  cache->leave();
  thread.join();
  EXPECT_FALSE(cache->is_revoked());
  expect_empty();
}

}  // namespace
}  // namespace gmm::test
