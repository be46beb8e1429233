// SPDX-License-Identifier: Apache-2.0
// What the store does beside a transfer: prepare, read, drop, trim. Each also runs while a transfer runs.
#include "engine/backup/store.h"

#include <atomic>
#include <thread>

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class StoreTest : public BackupTest {};

TEST_F(StoreTest, DropTakesWhatOverlaps) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable, Tier::kFile}) {
    only(tier);
    device(16 * kMiB);
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save({range(0, 16 * kMiB)}, kept).ok());
    store.drop(kept, range(5 * kMiB, 1));
    EXPECT_EQ(kept.chunks.size(), 3u);
    std::vector<char> out(16 * kMiB);
    EXPECT_EQ(store.read(kept, range(0, 5 * kMiB), out.data()).code(), GMM_ERROR_INVALID_VALUE);
    EXPECT_TRUE(store.read(kept, range(0, 4 * kMiB), out.data()).ok());
    EXPECT_TRUE(store.read(kept, range(9 * kMiB, 7 * kMiB), out.data()).ok());
    store.drop(kept, range(0, 16 * kMiB));
    EXPECT_TRUE(kept.chunks.empty());
    EXPECT_EQ(kept_bytes(), 0u);
  }
}

TEST_F(StoreTest, PrepareAndTrim) {
  configure(100 * kMiB, kMiB);
  ASSERT_TRUE(store.prepare(Device{0}, 70 * kMiB).ok()) << last_message();
  EXPECT_GE(info().arena_bytes, 70 * kMiB);
  EXPECT_LE(info().arena_bytes, 100 * kMiB);
  EXPECT_EQ(info().arena_used, 0u);
  EXPECT_EQ(info().arena_limit, 100 * kMiB);
  EXPECT_EQ(store.prepare(Device{0}, 101 * kMiB).code(), GMM_ERROR_LIMIT_EXCEEDED);
  device(8 * kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, 8 * kMiB)}, kept).ok());
  EXPECT_EQ(info().arena_used, 8 * kMiB);
  EXPECT_GE(store.trim(), 32 * kMiB);
  EXPECT_EQ(info().arena_bytes, BackupArena::kSegment);
  const std::vector<char> before = memory;
  std::memset(memory.data(), 0, 8 * kMiB);
  ASSERT_TRUE(restore({range(0, 8 * kMiB)}, kept).ok());
  EXPECT_EQ(std::memcmp(memory.data(), before.data(), 8 * kMiB), 0);
  store.drop_all(kept);
  EXPECT_GE(store.trim(), BackupArena::kSegment);
  EXPECT_EQ(info().arena_bytes, 0u);
}

// Threads that trim, query, read and drop neither wait for a save nor disturb it.
TEST_F(StoreTest, OthersMeanwhile) {
  constexpr uint64_t kSize = 24 * kMiB;
  configure(64 * kMiB, 64 * kMiB);
  device(kSize);
  const std::vector<char> before = memory;
  KeptContents other{HostAllocator()};
  ASSERT_TRUE(save({range(0, 9 * kMiB)}, other).ok());
  std::atomic<bool> stop{false};
  std::thread trimmer([&] {
    while (!stop) {
      store.trim();
      gmm_backup_info now = {};
      store.query(&now);
    }
  });
  std::thread reader([&] {
    std::vector<char> out(9 * kMiB);
    while (!stop) {
      ASSERT_TRUE(store.read(other, range(0, 9 * kMiB), out.data()).ok());
      ASSERT_EQ(std::memcmp(out.data(), before.data(), out.size()), 0);
    }
  });
  for (uint32_t i = 0; i < 10; i += kStride) {
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save({range(0, kSize)}, kept, i % 2 == 0 ? checksum_flag() : 0).ok()) << last_message();
    ASSERT_TRUE(restore({range(0, kSize)}, kept).ok()) << last_message();
    ASSERT_EQ(memory, before);
    store.drop_all(kept);
  }
  stop = true;
  trimmer.join();
  reader.join();
  // A trim inside a save does not wait for it.
  bool trimmed = false;
  recorder.on_progress = [&] {
    store.trim();
    trimmed = true;
  };
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kSize)}, kept).ok());
  EXPECT_TRUE(trimmed);
  store.drop_all(kept);
  store.drop_all(other);
}

}  // namespace
}  // namespace gmm::test
