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
