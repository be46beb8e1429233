// SPDX-License-Identifier: Apache-2.0
#include "engine/space/deferred_release.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// The system lets go of addresses in which something is mapped, and maps over it. A mapping that lies there later must
// not go when the mapping is offered again.
TEST(DeferredRelease, AddressesAreNobodysWhileAMappingIsRefused) {
  Engine engine;
  FailingBackend &backend = *engine.backend;
  DeferredRelease &deferred = engine.core.deferred_release;
  constexpr uint64_t kSize = 2 * kMiB;
  void *base = nullptr;
  PhysicalHandle handle;
  ASSERT_TRUE(backend.reserve(kSize, &base).ok());
  ASSERT_TRUE(backend.create(Device{0}, kSize, false, &handle).ok());
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

TEST(DeferredRelease, NothingIsMappedOverWhatTheDriverDidNotUnmap) {
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
