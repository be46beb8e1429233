// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/extents.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// Extents over the host backend, without a heap around them.
class ExtentsOfKind {
 public:
  explicit ExtentsOfKind(Kind kind) : runs(engine.core, nullptr, kind != Kind::kVmm) {
    options.kind = kind;
    quotas.each[0] = &quota;
  }
  ~ExtentsOfKind() {
    while (Region *region = runs.regions().front()) extents.end_with_blocks(region);
    EXPECT_EQ(quota.held(), 0u);
    EXPECT_EQ(extents.count(), 0u);
    for (const auto &[made, ended] :
         {std::pair{"create", "release"}, {"map", "unmap"}, {"reserve", "unreserve"}, {"allocate", "deallocate"}})
      EXPECT_EQ(engine.backend->count(made), engine.backend->count(ended)) << made;
  }
  Region *reserve(uint64_t bytes, bool dedicated = false) {
    Region *region = nullptr;
    EXPECT_TRUE(extents.reserve(bytes, dedicated ? bytes : Extents::kRegionSize, &region).ok());
    return region;
  }
  // A listed free run at the start of a new region.
  Span *backed(uint64_t bytes, uint64_t each) {
    Extents::Fill fill;
    fill.hole = reserve(bytes)->first;
    EXPECT_TRUE(quota.charge(bytes));
    EXPECT_TRUE(extents.add(&fill, bytes, each).ok());
    runs.list_hole(fill.hole);
    runs.list(fill.filled);
    return fill.filled;
  }
  Extent *at(uintptr_t address) { return engine.core.page_map.find_extent(reinterpret_cast<void *>(address)); }

  Engine engine;
  HeapOptions options;
  Quota quota;
  Quotas quotas;
  Runs runs;
  Extents extents{engine.core, nullptr, engine.backups, options, quotas, runs};
};

TEST(Extents, AHoleIsBackedByExtentsOfTheGivenSize) {
  ExtentsOfKind all(Kind::kVmm);
  Region *region = all.reserve(10 * kMiB, true);
  Extents::Fill fill;
  fill.hole = region->first;
  ASSERT_TRUE(all.quota.charge(10 * kMiB));
  ASSERT_TRUE(all.extents.add(&fill, 10 * kMiB, 4 * kMiB).ok());
  EXPECT_EQ(fill.hole, nullptr);
  EXPECT_EQ(fill.bytes, 10 * kMiB);
  ASSERT_EQ(fill.filled, region->first);
  EXPECT_EQ(fill.filled->bytes(), 10 * kMiB);
  EXPECT_EQ(all.extents.count(), 3u);
  const uintptr_t base = region->base;
  EXPECT_EQ(size_of(*all.at(base)), 4 * kMiB);
  EXPECT_EQ(size_of(*all.at(base + 8 * kMiB)), 2 * kMiB);
  EXPECT_NE(all.at(base), all.at(base + 4 * kMiB));
  uint32_t seen = 0;
  all.extents.for_each_in(fill.filled, [&](Extent *) { ++seen; });
  EXPECT_EQ(seen, 3u);
}

TEST(Extents, WhatCannotBeAddedIsRefunded) {
  for (uint64_t k = 1;; ++k) {
    ExtentsOfKind all(Kind::kVmm);
    Extents::Fill fill;
    Region *region = all.reserve(8 * kMiB);
    fill.hole = region->first;
    ASSERT_TRUE(all.quota.charge(8 * kMiB));
    all.engine.backend->refuse(k);
    const Status status = all.extents.add(&fill, 8 * kMiB, 2 * kMiB);
    const bool refused = all.engine.backend->refused() != 0;
    all.engine.backend->refuse(0);
    EXPECT_EQ(status.ok(), !refused) << k;
    EXPECT_EQ(all.quota.held(), fill.bytes) << k;
    ASSERT_NE(fill.hole, nullptr);
    EXPECT_EQ(fill.hole->bytes(), region->size - fill.bytes) << k;
    EXPECT_EQ(all.extents.count(), fill.bytes / (2 * kMiB)) << k;
    if (fill.bytes < 8 * kMiB) {  // a retry makes the rest
      ASSERT_TRUE(all.quota.charge(8 * kMiB - fill.bytes));
      EXPECT_TRUE(all.extents.add(&fill, 8 * kMiB - fill.bytes, 2 * kMiB).ok()) << k;
    }
    EXPECT_EQ(fill.bytes, 8 * kMiB);
    if (!refused) break;
  }
}

TEST(Extents, AMoveKeepsTheHandleAndARefusalThePlace) {
  for (uint64_t k = 1;; ++k) {
    ExtentsOfKind all(Kind::kVmm);
    Span *run = all.backed(4 * kMiB, 2 * kMiB);
    const uintptr_t from = run->begin() + 2 * kMiB;
    Extent *extent = all.at(from);
    const uint64_t handle = extent->handle.value, id = extent->id;
    Extents::Fill fill;
    fill.hole = all.reserve(4 * kMiB)->first;
    const uintptr_t to = fill.hole->begin();
    all.engine.backend->refuse(k);
    const Status status = all.extents.move(extent, run, &fill);
    const bool refused = all.engine.backend->refused() != 0;
    all.engine.backend->refuse(0);
    EXPECT_EQ(status.ok(), !refused) << k;
    EXPECT_EQ(extent->handle.value, handle);
    EXPECT_EQ(base_of(*extent), refused ? from : to) << k;
    EXPECT_EQ(all.at(from), refused ? extent : nullptr) << k;
    EXPECT_EQ(all.at(to), refused ? nullptr : extent) << k;
    EXPECT_EQ(all.runs.free_bytes(), refused ? 4 * kMiB : 2 * kMiB) << k;
    if (refused) continue;
    EXPECT_NE(extent->id, id) << "an importer of the old place must not find the new one";
    EXPECT_EQ(fill.bytes, 2 * kMiB);
    break;
  }
}

TEST(Extents, MovesOutOfOneRunFindWhatIsLeftOfIt) {
  ExtentsOfKind all(Kind::kVmm);
  Span *run = all.backed(8 * kMiB, 2 * kMiB);
  const uintptr_t from = run->begin();
  Extents::Fill fill;
  fill.hole = all.reserve(8 * kMiB)->first;
  const uintptr_t to = fill.hole->begin();
  uint64_t moved = 0;
  for (const uint64_t place : {2, 0, 3, 1}) {  // the rest is a span of its own each time
    Extent *extent = all.at(from + place * 2 * kMiB);
    ASSERT_TRUE(all.extents.move(extent, run, &fill).ok()) << last_message();
    EXPECT_EQ(base_of(*extent), to + moved++ * 2 * kMiB);
  }
  EXPECT_EQ(fill.bytes, 8 * kMiB);
  EXPECT_EQ(all.runs.free().bytes(), 0u);
}

TEST(Extents, WholeExtentsOfARunGoUpToABound) {
  ExtentsOfKind all(Kind::kVmm);
  Span *run = all.backed(8 * kMiB, 2 * kMiB);
  const uintptr_t base = run->begin();
  Extent *imported = all.at(base + 2 * kMiB);
  imported->importers = 1;
  uint64_t released = 0;
  ASSERT_TRUE(all.extents.release_in(run, 4 * kMiB, &released, nullptr).ok());
  EXPECT_EQ(released, 4 * kMiB);
  EXPECT_EQ(all.at(base), nullptr);
  EXPECT_EQ(all.at(base + 2 * kMiB), imported) << "an importer has it";
  EXPECT_EQ(all.at(base + 4 * kMiB), nullptr);
  EXPECT_NE(all.at(base + 6 * kMiB), nullptr) << "the bound was reached";
  EXPECT_EQ(all.quota.held(), 4 * kMiB);
  EXPECT_EQ(all.runs.free_bytes(), 4 * kMiB);
  imported->importers = 0;
}

TEST(Extents, PausedNeighboursBecomeOne) {
  ExtentsOfKind all(Kind::kVmm);
  Span *run = all.backed(4 * kMiB, 2 * kMiB);
  Extent *first = all.at(run->begin()), *second = all.at(run->begin() + 2 * kMiB);
  for (Extent *extent : {first, second}) {
    ASSERT_TRUE(all.engine.backend->unmap(reinterpret_cast<void *>(base_of(*extent)), 2 * kMiB).ok());
    ASSERT_TRUE(all.engine.backend->release(std::exchange(extent->handle, PhysicalHandle{})).ok());
    extent->mapped = false;
    extent->state = ExtentState::kPaused;
    all.quotas.refund(2 * kMiB);
    all.extents.count_paused(2 * kMiB);
  }
  ASSERT_TRUE(all.extents.merge(first, second));
  EXPECT_EQ(size_of(*first), 4 * kMiB);
  EXPECT_EQ(all.at(run->begin() + 2 * kMiB), first);
  EXPECT_EQ(all.extents.count(), 1u);
  Span *rest = nullptr;
  all.runs.unlist(run);
  ASSERT_TRUE(all.extents.release(first, run, &rest).ok());
  EXPECT_EQ(rest, nullptr);
  EXPECT_EQ(all.extents.paused_bytes(), 0u);
  all.extents.end_empty_regions();
  EXPECT_TRUE(all.runs.regions().empty());
}

TEST(Extents, AnAllocationIsARegionAndGoesWhole) {
  ExtentsOfKind all(Kind::kDevice);
  Span *span = nullptr;
  ASSERT_TRUE(all.quota.charge(6 * kMiB));
  ASSERT_TRUE(all.extents.allocate(6 * kMiB, false, &span).ok());
  Region *region = span->region;
  const uintptr_t base = span->begin();
  EXPECT_EQ(region->size.load(), 6 * kMiB);
  ASSERT_NE(all.at(base + 4 * kMiB), nullptr);
  all.engine.backend->refuse(1, "deallocate");
  EXPECT_FALSE(all.extents.deallocate(region).ok());
  all.engine.backend->refuse(0);
  EXPECT_NE(all.at(base), nullptr) << "a refusal leaves it";
  EXPECT_EQ(all.quota.held(), 6 * kMiB);
  ASSERT_TRUE(all.extents.deallocate(region).ok());
  EXPECT_EQ(all.at(base), nullptr);
}

// The system lets go of addresses in which something is mapped, and maps over it. What lies there later must not go
// when the mapping is offered again.
TEST(DeferredRelease, AddressesAreNobodysWhileAMappingIsRefused) {
  Engine engine;
  FailingBackend &backend = *engine.backend;
  DeferredRelease &deferred = engine.core.deferred_release;
  constexpr uint64_t kSize = 2 * kMiB;
  void *base = nullptr;
  PhysicalHandle handle;
  ASSERT_TRUE(backend.reserve(kSize, &base).ok());
  ASSERT_TRUE(backend.create(Device{0}, kSize, &handle).ok());
  ASSERT_TRUE(backend.map(base, kSize, handle).ok());
  backend.refuse(1, "unmap", true);
  deferred.unmap(backend, base, kSize);
  EXPECT_FALSE(deferred.end_mappings(backend, base, kSize).ok());
  deferred.unreserve(backend, base, kSize);
  deferred.retry(backend);
  EXPECT_EQ(backend.count("unreserve"), 0u);
  backend.refuse(0);
  EXPECT_TRUE(deferred.end_mappings(backend, base, kSize).ok());
  EXPECT_EQ(backend.count("unmap"), 1u);
  deferred.retry(backend);
  EXPECT_EQ(backend.count("unmap"), 1u);
  EXPECT_EQ(backend.count("unreserve"), 1u);
  deferred.release(backend, handle);
}

TEST(Extents, NothingIsMappedOverWhatTheDriverDidNotUnmap) {
  Engine engine;
  auto heap = make_heap(engine, Kind::kVmm);
  put(*heap, taken(*heap, 2 * kMiB));
  FailingBackend &backend = *engine.backend;
  backend.refuse(1, "set_access");
  backend.refuse_also(1, "unmap");
  CacheEntry none;
  EXPECT_FALSE(take(*heap, 8 * kMiB, kKey, true, &none).ok());
  const CacheEntry block = taken(*heap, 8 * kMiB);
  memset(block.block, 3, 8 * kMiB);
  engine.core.deferred_release.retry(backend);
  EXPECT_EQ(static_cast<char *>(block.block)[8 * kMiB - 1], 3) << "an earlier mapping took the block's along";
  memset(block.block, 4, 8 * kMiB);
  put(*heap, block);
  EXPECT_TRUE(heap->close(false).ok());
}

}  // namespace
}  // namespace gmm::test
