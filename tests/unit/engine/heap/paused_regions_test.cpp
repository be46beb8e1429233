// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/paused_regions.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// The first region, as the pauser leaves it.
void pause(Engine &engine, Heap &heap) {
  LockGuard guard(heap.mutex);
  Region &region = *heap.regions().front();
  heap.paused().detach(region);
  for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent)) {
    const uint64_t size = size_of(*extent);
    EXPECT_TRUE(engine.backend->unmap(reinterpret_cast<void *>(base_of(*extent)), size).ok());
    EXPECT_TRUE(engine.backend->release(std::exchange(extent->handle, PhysicalHandle{})).ok());
    extent->mapped = false;
    extent->state = ExtentState::kPaused;
    heap.quotas().refund(size);
    heap.extents().count_paused(static_cast<int64_t>(size));
  }
}

TEST(PausedRegions, TheirFreeMemoryServesNobodyUntilItIsBack) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const CacheEntry small = taken(*heap, 1000), large = taken(*heap, kMiB);
  Region &region = *heap->regions().front();
  {
    LockGuard guard(heap->mutex);
    heap->paused().detach(region);
  }
  EXPECT_EQ(heap->fast.has_paused.load(), 1u);
  check_heap(engine, *heap);
  for (uint64_t size : {uint64_t{1000}, kMiB / 4}) {
    CacheEntry entry;
    ASSERT_TRUE(take(*heap, size, kKey, false, &entry).ok());
    EXPECT_EQ(entry.block, nullptr) << size;
  }
  put(*heap, large);
  check_heap(engine, *heap);
  {
    LockGuard guard(heap->mutex);
    heap->paused().attach(region);
    heap->paused().forget(region);  // of a region that is not paused: nothing happens
  }
  EXPECT_EQ(heap->fast.has_paused.load(), 0u);
  CacheEntry entry;
  ASSERT_TRUE(take(*heap, kMiB, kKey, false, &entry).ok());
  EXPECT_EQ(entry.block, large.block);
  put(*heap, entry);
  put(*heap, small);
  check_heap(engine, *heap);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(PausedRegions, RetainingIsCountedOnce) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  LockGuard guard(heap->mutex);
  for (const bool retaining : {true, true, false, false}) {
    heap->paused().set_retaining(retaining);
    EXPECT_EQ(heap->fast.has_paused.load(), retaining ? 1u : 0u);
  }
}

TEST(PausedRegions, PausedMemoryWithoutBlocksBecomesAddressesAgain) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  const CacheEntry a = taken(*heap, kMiB), b = taken(*heap, 5 * kMiB);
  pause(engine, *heap);
  put(*heap, a);
  put(*heap, b);
  {
    LockGuard guard(heap->mutex);
    Region *region = heap->regions().front();
    ASSERT_TRUE(heap->paused().drop(*region));
    EXPECT_TRUE(region->extents.empty());
    heap->paused().attach(*region);
  }
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_EQ(heap->totals().paused, 0u);
  check_heap(engine, *heap);
  put(*heap, taken(*heap, 3 * kMiB));
  check_heap(engine, *heap);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(PausedRegions, ADedicatedRegionThatIsDroppedEnds) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  CacheEntry entry;
  ASSERT_TRUE(take_dedicated(*heap, 3 * kMiB, &entry).ok());
  pause(engine, *heap);
  put(*heap, entry);
  {
    LockGuard guard(heap->mutex);
    EXPECT_FALSE(heap->paused().drop(*heap->regions().front()));
    EXPECT_TRUE(heap->regions().empty());
  }
  EXPECT_EQ(heap->fast.has_paused.load(), 0u);
  EXPECT_EQ(heap->own_quota().held(), 0u);
  EXPECT_EQ(engine.backend->count("unreserve"), 1u);
  EXPECT_TRUE(heap->close(false).ok());
}

TEST(PausedRegions, ExtentsOfOneBlockBecomeOne) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 2 * kMiB));  // what was freed once lies in extents that can be moved
  const CacheEntry block = taken(*heap, 120 * kMiB);
  const uint64_t before = heap->totals().extents;
  ASSERT_GT(before, 2u);
  pause(engine, *heap);
  {
    LockGuard guard(heap->mutex);
    heap->paused().merge(*heap->regions().front());
  }
  EXPECT_LT(heap->totals().extents, before);
  const Extent *extent = engine.core.page_map.find_extent(block.block);
  EXPECT_EQ(engine.core.page_map.find_extent(static_cast<char *>(block.block) + 100 * kMiB), extent);
  EXPECT_TRUE(heap->close(true).ok());
}

}  // namespace
}  // namespace gmm::test
