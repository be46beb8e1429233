// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <random>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// Blocks of a heap by address, to see that none overlap.
class Blocks {
 public:
  void add(void *block, uint64_t bytes) {
    const uintptr_t base = reinterpret_cast<uintptr_t>(block);
    auto after = live_.lower_bound(base);
    if (after != live_.end()) {
      ASSERT_LE(base + bytes, after->first);
    }
    if (after != live_.begin()) {
      auto before = std::prev(after);
      ASSERT_LE(before->first + before->second, base);
    }
    live_[base] = bytes;
  }
  void remove(void *block) { ASSERT_EQ(live_.erase(reinterpret_cast<uintptr_t>(block)), 1u); }

 private:
  std::map<uintptr_t, uint64_t> live_;
};

class HeapOfKind : public testing::TestWithParam<Kind> {};

TEST_P(HeapOfKind, RandomBlocksNeverOverlapAndRegionsStayTiled) {
  Engine engine;
  auto heap = make_heap(engine, GetParam());
  std::mt19937 random(7);
  Blocks model;
  struct Live {
    CacheEntry entry;
    uint64_t size;
  };
  std::vector<Live> live;
  const gmm_stream streams[] = {GMM_STREAM_DEFAULT, engine.stream(), engine.stream()};
  for (int step = 0; step < 6000; ++step) {
    const StreamKey key{streams[random() % 3], 0};
    if (live.size() < 60 && random() % 2 == 0) {
      const uint64_t exponent = random() % 15;
      const uint64_t size = 1 + random() % (uint64_t{512} << exponent);
      const uint64_t alignment = random() % 8 == 0 ? uint64_t{1} << (15 + random() % 7) : 1;
      CacheEntry entry;
      ASSERT_TRUE(take(*heap, size, key, random() % 4 != 0, &entry, alignment).ok()) << last_message();
      if (entry.block != nullptr) {
        ASSERT_EQ(reinterpret_cast<uintptr_t>(entry.block) % alignment, 0u);
        entry.slot->store(size);
        ASSERT_NO_FATAL_FAILURE(model.add(entry.block, size));
        Span *span = engine.core.page_map.find(entry.block);
        ASSERT_GE(span->block_bytes(), size);
        live.push_back({entry, size});
      }
    } else if (!live.empty()) {
      const size_t at = random() % live.size();
      ASSERT_NO_FATAL_FAILURE(model.remove(live[at].entry.block));
      put(*heap, live[at].entry, key);
      live[at] = live.back();
      live.pop_back();
    }
    if (step % 97 == 0) {
      uint64_t released = 0;
      ASSERT_TRUE(heap->reclaim()
                      .release(random() % 2 == 0 ? UINT64_MAX : kExtentAlignment, random() % 2 == 0, &released)
                      .ok());
    }
    ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap)) << "after step " << step;
  }
  EXPECT_EQ(heap->close(false).code(), live.empty() ? GMM_OK : GMM_ERROR_BUSY);
  for (Live &block : live) put(*heap, block.entry);
  ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap));
  EXPECT_TRUE(heap->close(false).ok()) << last_message();
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_EQ(engine.backend->count("create"), engine.backend->count("release"));
  EXPECT_EQ(engine.backend->count("reserve"), engine.backend->count("unreserve"));
  EXPECT_EQ(engine.backend->count("allocate"), engine.backend->count("deallocate"));
}
INSTANTIATE_TEST_SUITE_P(Kinds, HeapOfKind, testing::Values(Kind::kVmm, Kind::kDevice, Kind::kHost, Kind::kManaged));

TEST(Heap, TrimGivesEverythingBackWhenNothingIsLive) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const StreamKey other{engine.stream(), 0};
  // One extent, freed on two streams: its runs are neighbours that wait for different streams.
  const CacheEntry a = taken(*heap, 1 << 20), b = taken(*heap, 1 << 20);
  put(*heap, a);
  put(*heap, b, other);
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_EQ(released, kExtentAlignment);
  EXPECT_EQ(heap->own_quota().held(), 0u);
  check_heap(engine, *heap);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Heap, AModelThatIsLoadedFirstLiesInFewLargeExtents) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const uint64_t size = uint64_t{1536} << 20;
  const CacheEntry model = taken(*heap, size);
  EXPECT_EQ(heap->totals().extents, 2u);
  EXPECT_EQ(heap->totals().held, size);
  put(*heap, model);
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, false, &released).ok()) << last_message();
  EXPECT_EQ(released, size);
  const CacheEntry later = taken(*heap, size);
  EXPECT_GE(heap->totals().extents, 1536u / 32) << "what was freed once may have to be moved later";
  put(*heap, later);
  check_heap(engine, *heap);
}

// What a heap grew behind memory of another stream is ordered for the stream that grew it, and for no third.
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

// Blocks that grow as fast as a processor allows earn no more moves than the driver's share of the time.
TEST(Heap, AChurnMakesFewDriverCallsASecond) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const auto alloc = [&](uint64_t bytes) {
    void *block = nullptr;
    EXPECT_TRUE(cached_alloc(*heap, bytes, 0, GMM_STREAM_DEFAULT, &block).ok()) << last_message();
    return block;
  };
  const auto release = [&](void *block) { EXPECT_TRUE(cached_free(engine.core, block, GMM_STREAM_DEFAULT).ok()); };
  const auto calls = [&] { return engine.backend->count("map") + engine.backend->count("unmap"); };
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t round = 0; round < 800; ++round) {
    const uint64_t size = 4 * kMiB + round * 24 * 1024;
    std::vector<void *> blocks(64);
    for (void *&block : blocks) block = alloc(size);
    for (size_t i = 0; i < blocks.size(); i += 2) release(blocks[i]);
    for (size_t i = 0; i < blocks.size(); i += 4) blocks[i] = alloc(2 * size);
    for (size_t i = 0; i < blocks.size(); ++i)
      if (i % 4 != 2) release(blocks[i]);
    for (int i = 0; i < 4000; ++i) release(alloc(1000));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double moves = .4 / 40e-6 + seconds / 20 / 40e-6;  // of the start, and of the time
  const double made = static_cast<double>(heap->own_quota().peak() / kExtentAlignment);
  EXPECT_LT(static_cast<double>(calls()), 1.2 * (2 * moves + made)) << "without the bound they were twice as many";
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Heap, DedicatedBlocksComeAndGo) {
  for (Kind kind : {Kind::kVmm, Kind::kDevice}) {
    Engine engine;
    auto heap = make_heap(engine, kind);
    std::vector<CacheEntry> blocks;
    for (int i = 0; i < 5; ++i) {
      CacheEntry entry;
      ASSERT_TRUE(take_dedicated(*heap, 1 + i * (kExtentAlignment / 2), &entry).ok());
      blocks.push_back(entry);
      check_heap(engine, *heap);
    }
    for (const CacheEntry &block : blocks) put(*heap, block);
    check_heap(engine, *heap);
    uint64_t released = 0;
    ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
    EXPECT_EQ(heap->own_quota().held(), 0u);
    EXPECT_TRUE(heap->regions().empty());
    EXPECT_TRUE(heap->close(false).ok());
  }
}

// A callback of a stream that frees must not wait for a trim that waits for the stream.
TEST(Heap, FreesGoOnWhileMemoryThatStreamsUseIsReleased) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  struct Shared {
    Heap *heap;
    CacheEntry entry;
    std::atomic<bool> freed{false};
  } shared{heap.get(), taken(*heap, 1 << 20)};
  const StreamKey key{engine.stream(), 0};
  const CacheEntry other = taken(*heap, 4 << 20, key);
  ASSERT_TRUE(engine.backend
                  ->stream_call(
                      Device{0}, key.stream,
                      [](void *user) {
                        usleep(50000);
                        auto *s = static_cast<Shared *>(user);
                        s->entry.slot->store(0);
                        s->heap->put_back(&s->entry, 1, StreamKey{GMM_STREAM_DEFAULT, 0});
                        s->freed = true;
                      },
                      &shared)
                  .ok());
  put(*heap, other, key);
  uint64_t released = 0;
  ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok());
  EXPECT_TRUE(shared.freed);
  EXPECT_GE(released, 4u << 20);
  EXPECT_TRUE(heap->close(false).ok());
}

// Every operation of the backend fails once: the heap stays whole, the quota exact, and a retry works.
TEST_P(HeapOfKind, TheKthFailureLosesNothing) {
  for (uint64_t k = 1;; ++k) {
    Engine engine;
    auto heap = make_heap(engine, GetParam());
    const CacheEntry kept = taken(*heap, 3 << 20);
    const StreamKey key{engine.stream(), 0};
    put(*heap, taken(*heap, 1 << 20), key);
    engine.backend->refuse(k);
    CacheEntry entry;
    Status status = take(*heap, 9 << 20, kKey, true, &entry);
    ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap)) << k;
    if (status.ok()) entry.slot->store(1);
    CacheEntry dedicated;
    const Status second = take_dedicated(*heap, 5 << 20, &dedicated);
    ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap)) << k;
    if (status.ok()) put(*heap, entry, key);
    if (second.ok()) put(*heap, dedicated);
    uint64_t released = 0;
    const Status third = heap->reclaim().release(UINT64_MAX, true, &released);
    ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap)) << k;
    const bool failed = engine.backend->refused() != 0;
    engine.backend->refuse(0);
    if (!third.ok()) {
      ASSERT_TRUE(heap->reclaim().release(UINT64_MAX, true, &released).ok()) << k;
    }
    put(*heap, taken(*heap, 9 << 20));
    put(*heap, kept);
    ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap)) << k;
    EXPECT_TRUE(heap->close(false).ok()) << k;
    EXPECT_EQ(heap->own_quota().held(), 0u) << k;
    if (!failed) {
      EXPECT_GT(k, 3u);
      break;
    }
  }
}

TEST(Heap, ALimitIsExactOverGrowth) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  heap->own_quota().set_limit(8 << 20);
  const CacheEntry a = taken(*heap, 5 << 20);
  CacheEntry b;
  EXPECT_EQ(take(*heap, 5 << 20, kKey, true, &b).code(), GMM_ERROR_LIMIT_EXCEEDED);
  check_heap(engine, *heap);
  put(*heap, a);
  b = taken(*heap, 7 << 20);
  EXPECT_LE(heap->own_quota().held(), 8u << 20);
  put(*heap, b);
  EXPECT_TRUE(heap->close(false).ok());
  EXPECT_EQ(heap->own_quota().held(), 0u);
}

}  // namespace
}  // namespace gmm::test
