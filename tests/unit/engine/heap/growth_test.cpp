// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/growth.h"

#include <random>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

TEST(Growth, AFreeNeighbourIsPartOfTheNewRun) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const CacheEntry first = taken(*heap, 4 * kMiB);
  put(*heap, first);
  const uint64_t held = heap->own_quota().held();
  const CacheEntry second = taken(*heap, 10 * kMiB);
  EXPECT_EQ(second.block, first.block) << "the region grows behind its free run";
  EXPECT_EQ(heap->own_quota().held(), held + 10 * kMiB - 4 * kMiB);
  EXPECT_EQ(engine.backend->count("reserve"), 1u);
  put(*heap, second);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Growth, FreeExtentsMoveBeforeTheHeapGrowsPastItsPeak) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 2 * kMiB));
  std::vector<CacheEntry> blocks;
  // Each in extents of its own, as it is larger than the heap's steps.
  for (int i = 0; i < 16; ++i) blocks.push_back(taken(*heap, 32 * kMiB));
  // Every second one: free runs of 32 MiB, which no block of 64 MiB fits.
  for (size_t i = 0; i < blocks.size(); i += 2) put(*heap, blocks[i]);
  uint64_t released = 0;  // none, but the heap waits for the work that may use what is free
  ASSERT_TRUE(heap->reclaim().release(0, true, &released).ok());
  const uint64_t held = heap->own_quota().held();
  std::vector<CacheEntry> large;
  for (int i = 0; i < 4; ++i) large.push_back(taken(*heap, 64 * kMiB));
  EXPECT_LE(heap->own_quota().held(), held + held / 64);
  check_heap(engine, *heap);
  for (size_t i = 1; i < blocks.size(); i += 2) put(*heap, blocks[i]);
  for (const CacheEntry &block : large) put(*heap, block);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Growth, InsideADeferNothingMoves) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 2 * kMiB));
  std::vector<CacheEntry> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(taken(*heap, 4 * kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) put(*heap, blocks[i]);
  engine.core.defer_depth = 1;
  const uint64_t unmaps = engine.backend->count("unmap");
  const CacheEntry large = taken(*heap, 24 * kMiB);
  EXPECT_EQ(engine.backend->count("unmap"), unmaps);
  engine.core.defer_depth = 0;
  put(*heap, large);
  for (size_t i = 1; i < blocks.size(); i += 2) put(*heap, blocks[i]);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(Growth, AStepThatTheLimitRefusesIsTriedAsTheNeed) {
  for (const Kind kind : {Kind::kVmm, Kind::kDevice}) {
    Engine engine;
    auto heap = make_heap(engine, kind, 64 * kMiB);
    heap->own_quota().set_limit(8 * kMiB);
    const CacheEntry block = taken(*heap, 6 * kMiB);
    EXPECT_EQ(heap->own_quota().held(), 6 * kMiB) << "not the 64 MiB that the heap would take at least";
    CacheEntry none;
    EXPECT_EQ(take(*heap, 4 * kMiB, kKey, true, &none).code(), GMM_ERROR_LIMIT_EXCEEDED);
    EXPECT_NE(std::string(last_message()).find("4194304 more bytes"), std::string::npos) << last_message();
    put(*heap, block);
    EXPECT_TRUE(heap->close(false).ok());
  }
}

// The hole lies behind a free run that the block needs: that run stays where it is, also when the limit makes the heap
// move free memory once more, behind what it moved first.
TEST(Growth, TheRunBeforeTheHoleStaysWhenALimitWantsMoreMoves) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  std::vector<CacheEntry> blocks;
  for (const uint64_t size : {2, 2, 4, 8, 16}) blocks.push_back(taken(*heap, size * kMiB));  // an extent each
  ASSERT_EQ(heap->own_quota().held(), 32 * kMiB);
  put(*heap, blocks[2]);
  put(*heap, blocks[4]);
  heap->own_quota().set_limit(32 * kMiB);
  CacheEntry large;
  const Status status = take(*heap, 24 * kMiB, kKey, true, &large);
  check_heap(engine, *heap);
  EXPECT_EQ(status.code(), GMM_ERROR_LIMIT_EXCEEDED) << "20 MiB are free";
  if (status.ok()) {
    large.slot->store(24 * kMiB);
    put(*heap, large);
  }
  for (const int i : {0, 1, 3}) put(*heap, blocks[static_cast<size_t>(i)]);
  EXPECT_TRUE(heap->close(false).ok());
}

// What gmm_heap_desc.minimum_extent says, before and after the first free.
TEST(Growth, NoExtentIsSmallerThanTheProgramSaid) {
  constexpr uint64_t kLeast = 64 * kMiB;
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm, kLeast);
  std::vector<CacheEntry> blocks;
  for (const uint64_t size : {4, 100, 194, 8, 300, 66}) {
    put(*heap, taken(*heap, 4 * kMiB));
    blocks.push_back(taken(*heap, size * kMiB));
    for (Region *region = heap->regions().front(); region != nullptr; region = heap->regions().next(region))
      for (Extent *extent = region->extents.front(); extent != nullptr; extent = region->extents.next(extent))
        EXPECT_GE(extent->size.load(), kLeast) << "after a block of " << size << " MiB";
  }
  for (const CacheEntry &block : blocks) put(*heap, block);
  EXPECT_TRUE(heap->close(false).ok());
}

// Streams from the 64th on share a mark, and what they freed may not be told from what others of them freed.
TEST(Growth, ABlockOfTheSeventiethStreamLiesOnMemory) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  StreamKey last;
  for (int i = 0; i < 70; ++i) {
    last = StreamKey{engine.stream(), 0};
    put(*heap, taken(*heap, 2 * kMiB, last), last);
    ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, last.stream).ok());
  }
  const CacheEntry kept = taken(*heap, 2 * kMiB, last), freed = taken(*heap, 16 * kMiB, last);
  std::atomic<bool> is_open{false};
  const auto hold = [](void *open) {
    while (!static_cast<std::atomic<bool> *>(open)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  ASSERT_TRUE(engine.backend->stream_call(Device{0}, last.stream, hold, &is_open).ok());
  put(*heap, freed, last);
  const CacheEntry large = taken(*heap, 24 * kMiB, last);
  check_heap(engine, *heap);
  is_open = true;
  ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, last.stream).ok());
  if (!HasFailure()) memset(large.block, 1, 24 * kMiB);
  put(*heap, large, last);
  put(*heap, kept, last);
  EXPECT_TRUE(heap->close(false).ok());
}

// Blocks come and go on many streams, some of them busy or captured, under limits, with calls that the driver refuses.
// Each block lies on memory, and keeps what was written to both ends of each of its 2 MiB.
TEST(Growth, BlocksOfRandomHistoriesLieOnMemoryOfTheirOwn) {
  const char *seeds = std::getenv("GMM_TEST_SEEDS");
  const uint64_t last_seed = seeds == nullptr ? 12 : std::strtoull(seeds, nullptr, 10);
  for (uint64_t seed = 1; seed <= last_seed && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    Engine engine;
    auto heap = make_heap(engine, Kind::kVmm, below(4) == 0 ? 16 * kMiB : 0);
    if (below(3) == 0) heap->own_quota().set_limit((64 + below(200)) * kMiB);
    const uint64_t stream_count = below(4) == 0 ? 70 : 1 + below(4);
    std::vector<StreamKey> streams;
    for (uint64_t i = 0; i < stream_count; ++i) streams.push_back(StreamKey{engine.stream(), 0});
    if (stream_count == 70)
      for (const StreamKey &key : streams) put(*heap, taken(*heap, 2 * kMiB, key), key);
    struct Block {
      CacheEntry entry;
      uint64_t size, mark;
    };
    std::vector<Block> blocks;
    const auto for_each_mark = [](const Block &block, auto fn) {
      char *at = static_cast<char *>(block.entry.block);
      for (uint64_t i = 0; i < block.size; i += 2 * kMiB) {
        fn(reinterpret_cast<uint64_t *>(at + i));
        fn(reinterpret_cast<uint64_t *>(at + std::min(i + 2 * kMiB, block.size) - 8));
      }
    };
    uint64_t next_mark = 1;
    for (int step = 0; step < 400 && !HasFailure(); ++step) {
      const StreamKey key = streams[below(streams.size())];
      switch (below(16)) {
        case 0:
          engine.backend->refuse(1 + below(6),
                                 below(2) == 0   ? nullptr
                                 : below(2) == 0 ? "map"
                                                 : "create",
                                 below(3) == 0);
          break;
        case 1:
          engine.backend->refuse(0);
          engine.backend->capture(below(3) == 0);
          break;
        case 2:
          engine.core.defer_depth = below(4) == 0 ? 1 : 0;
          break;
        case 3:
          if (stream_count < 70)
            engine.backend
                ->stream_call(
                    Device{0}, key.stream, [](void *) { usleep(2000); }, nullptr)
                .ignore();
          break;
        case 4: {
          uint64_t released = 0;
          heap->reclaim().release(below(64) * kMiB, below(2) == 0, &released).ignore();
          break;
        }
        default:
          if (below(5) < 3) {
            Block block{CacheEntry{}, below(4) == 0 ? (129 + below(4000)) << 10 : (1 + below(30)) * kMiB, next_mark++};
            const uint64_t alignment = below(4) != 0 ? 1 : uint64_t{1} << below(22);
            if (!take(*heap, block.size, key, true, &block.entry, alignment).ok()) break;
            ASSERT_NE(block.entry.block, nullptr);
            ASSERT_EQ(reinterpret_cast<uintptr_t>(block.entry.block) % alignment, 0u);
            block.entry.slot->store(block.size);
            check_heap(engine, *heap);
            if (HasFailure()) break;
            for_each_mark(block, [&](uint64_t *at) { *at = block.mark; });
            blocks.push_back(block);
          } else if (!blocks.empty()) {
            const uint64_t at = below(blocks.size());
            for_each_mark(blocks[at], [&](const uint64_t *mark) { ASSERT_EQ(*mark, blocks[at].mark); });
            put(*heap, blocks[at].entry, key);
            blocks[at] = blocks.back();
            blocks.pop_back();
          }
      }
    }
    check_heap(engine, *heap);
    if (HasFailure()) return;
    engine.backend->refuse(0);
    engine.backend->capture(false);
    engine.core.defer_depth = 0;
    for (const Block &block : blocks) {
      for_each_mark(block, [&](const uint64_t *mark) { EXPECT_EQ(*mark, block.mark); });
      put(*heap, block.entry, streams[0]);
    }
    EXPECT_TRUE(heap->close(false).ok());
  }
}

}  // namespace
}  // namespace gmm::test
