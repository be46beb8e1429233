// SPDX-License-Identifier: Apache-2.0
// Saves that the interface cannot reach. tests/api/kth_failure.c lets each call of the driver fail once.
#include "engine/backup/transfer.h"

#include "engine/backup/test_support.h"

// The leak sanitizer's, if it is there.
extern "C" __attribute__((weak)) void __lsan_disable();
extern "C" __attribute__((weak)) void __lsan_enable();

namespace gmm::test {
namespace {

TEST_F(BackupTest, AChunkThatNewOnesOverlapIsReplaced) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable, Tier::kFile}) {
    only(tier);
    device(4 * kMiB);
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save({range(0, 4 * kMiB)}, kept).ok());
    const uint64_t cut = kept.chunks[0].size / 2;
    std::memset(memory.data(), 0x11, cut);
    const std::vector<char> expected = memory;
    ASSERT_TRUE(save({range(0, cut)}, kept).ok());
    for (uint64_t i = 1; i < kept.chunks.size(); ++i) ASSERT_GE(kept.chunks[i].base, kept.chunks[i - 1].end());
    std::memset(memory.data(), 0, cut);
    ASSERT_TRUE(restore({range(0, cut)}, kept).ok());
    EXPECT_EQ(memory, expected);
    store.drop(kept);
    EXPECT_EQ(kept_bytes(), 0u);
  }
}

// The driver refuses even to wait: the device may still copy, so nobody may free or reuse that host memory.
TEST_F(BackupTest, ARefusedWaitAbandonsHostMemory) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable}) {
    only(tier);
    const std::vector<char> before = device(16 * kMiB);
    KeptContents kept{HostAllocator()};
    after_copies = [&] {
      engine.backend->refuse(1, nullptr, true);
      return fail(GMM_ERROR_DRIVER, "The test refuses.");
    };
    if (__lsan_disable != nullptr) __lsan_disable();  // the save abandons its events, too
    EXPECT_EQ(save({range(0, 16 * kMiB)}, kept).code(), GMM_ERROR_DRIVER);
    if (__lsan_enable != nullptr) __lsan_enable();
    engine.backend->refuse(0);
    ASSERT_TRUE(engine.backend->synchronize(Device{0}).ok());  // late copies end before the test writes to `memory`
    EXPECT_TRUE(kept.chunks.empty());
    EXPECT_EQ(kept_bytes(), 0u);
    const uint64_t arena_bytes = info().arena_bytes;
    store.trim();
    EXPECT_EQ(info().arena_bytes, arena_bytes) << "abandoned memory does not go back";
    // The store works on.
    after_copies = [] { return Status(); };
    ASSERT_TRUE(save({range(0, 16 * kMiB)}, kept).ok()) << last_message();
    std::memset(memory.data(), 0, 16 * kMiB);
    ASSERT_TRUE(restore({range(0, 16 * kMiB)}, kept).ok()) << last_message();
    EXPECT_EQ(memory, before);
    store.drop(kept);
    EXPECT_GT(store.trim(), 0u) << "the slots of the last transfer go back";
  }
}

}  // namespace
}  // namespace gmm::test
