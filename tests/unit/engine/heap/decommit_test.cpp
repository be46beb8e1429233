// SPDX-License-Identifier: Apache-2.0
// The rounds run by a clock of the test's own.
#include "engine/heap/decommit.h"

#include <cstring>
#include <string>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kAge = 1000;

std::atomic<uint32_t> g_warnings{0};
void count_warnings(void *, uint32_t, const char *message) {
  if (std::strstr(message, "Idle memory could not be given back") != nullptr) ++g_warnings;
}

class DecommitTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    g_warnings = 0;
    ASSERT_TRUE(heaps.add(*heap));
  }
  void TearDown() override {
    decommit.stop();
    EXPECT_TRUE(heap->close(true).ok());
  }
  // Blocks of the central heap, past the calling thread's cache.
  CacheEntry take(uint64_t size) {
    CacheEntry taken;
    EXPECT_TRUE(test::take(*heap, size, kKey, true, &taken).ok()) << last_message();
    return taken;
  }
  void put(const CacheEntry &entry) { heap->put_back(&entry, 1, kKey); }
  // Rounds at each quarter of the age, up to `until`.
  void rounds(uint64_t until) {
    for (; now <= until; now += kAge / 4) decommit.round(now, kAge);
  }
  uint64_t held() { return heap->own_quota().held(); }
  // Calls that take memory from the driver or give it back.
  uint64_t driver_calls() {
    uint64_t sum = 0;
    for (const char *name : {"create", "map", "unmap", "release", "allocate", "deallocate"})
      sum += engine.backend->count(name);
    return sum;
  }

  Engine engine{uint64_t{4} << 30, Log(count_warnings, nullptr)};
  std::unique_ptr<Heap> heap = make_heap(engine, GetParam());
  HeapSet heaps{engine.core.allocator};
  Decommit decommit{engine.core, heaps};
  uint64_t now = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, DecommitTest, testing::Values(Kind::kVmm, Kind::kDevice, Kind::kHost, Kind::kManaged),
                         [](const auto &info) { return std::to_string(static_cast<uint32_t>(info.param)); });

TEST_P(DecommitTest, NeverMoreGoesThanWasFreeAllTheTime) {
  // 64 MiB come and go within the age; the rest of 160 MiB is not used.
  std::vector<CacheEntry> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(take(4 * kMiB));
  for (const CacheEntry &block : blocks) put(block);
  for (int i = 0; i < 40; ++i) {
    blocks.clear();
    for (int j = 0; j < 16; ++j) blocks.push_back(take(4 * kMiB));
    decommit.round(now += kAge / 4, kAge);
    for (const CacheEntry &block : blocks) put(block);
    decommit.round(now += kAge / 4, kAge);
    ASSERT_GE(held(), 64 * kMiB);
  }
  EXPECT_LE(held(), 64 * kMiB + 32 * kMiB) << "what is over the working set went";
  const uint64_t before = driver_calls();
  for (int j = 0; j < 16; ++j) blocks[static_cast<size_t>(j)] = take(4 * kMiB);
  EXPECT_EQ(driver_calls(), before);
  for (const CacheEntry &block : blocks) put(block);
}

TEST_P(DecommitTest, ARefusalOfTheDriverLosesNothingAndIsLoggedOnce) {
  const bool vmm = GetParam() == Kind::kVmm;
  for (const char *operation : {"unmap", "release", "deallocate"}) {
    if ((std::strcmp(operation, "deallocate") != 0) != vmm) continue;
    for (uint64_t k = 1, refusals = 1; refusals != 0; ++k) {
      std::vector<CacheEntry> blocks;
      for (int i = 0; i < 10; ++i) blocks.push_back(take(3 * kMiB));
      for (const CacheEntry &block : blocks) put(block);
      const CacheEntry kept = take(kMiB);
      std::memset(kept.block, 42, kMiB);
      engine.backend->refuse(k, operation, true);
      rounds(now + 3 * kAge);
      refusals = engine.backend->refused();
      EXPECT_TRUE(refusals != 0 || k > 3) << operation << " " << k;
      engine.backend->refuse(0);
      check_heap(engine, *heap);
      for (uint64_t i = 0; i < kMiB; ++i) ASSERT_EQ(static_cast<unsigned char *>(kept.block)[i], 42);
      // The memory is good: it serves again, and goes when the driver takes it.
      const CacheEntry again = take(20 * kMiB);
      std::memset(again.block, 7, 20 * kMiB);
      put(again);
      put(kept);
      rounds(now + 3 * kAge);
      EXPECT_EQ(held(), 0u) << operation << " " << k;
    }
    const uint64_t made = engine.backend->count(vmm ? "create" : "allocate");
    EXPECT_EQ(engine.backend->count(vmm ? "release" : "deallocate"), made) << "every handle went back";
  }
  // A handle that is not taken back is already unmapped; that is remembered, and said, elsewhere.
  EXPECT_EQ(g_warnings.load(), 1u);
}

}  // namespace
}  // namespace gmm::test
