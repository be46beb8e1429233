// SPDX-License-Identifier: Apache-2.0
// Which tier a chunk goes to: the first one that can take it.
#include "engine/backup/tiers.h"

#include <unistd.h>

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class TiersTest : public BackupTest {};

TEST_F(TiersTest, TiersFollowEachOther) {
  constexpr uint64_t kSize = 32 * kMiB;
  configure(8 * kMiB, 12 * kMiB);
  device(kSize);
  const std::vector<char> before = memory;
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kSize)}, kept).ok()) << last_message();
  const BackupTotals totals = BackupStore::totals(kept);
  EXPECT_EQ(totals.arena, 8 * kMiB);
  EXPECT_EQ(totals.pageable, 12 * kMiB);
  EXPECT_EQ(totals.file, 12 * kMiB);
  std::memset(memory.data(), 0, kSize);
  ASSERT_TRUE(restore({range(0, kSize)}, kept).ok());
  EXPECT_EQ(std::memcmp(memory.data(), before.data(), kSize), 0);
  store.drop_all(kept);
}

TEST_F(TiersTest, FileContentsGoToTheFile) {
  device(kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kMiB)}, kept, 0, GMM_CONTENTS_FILE).ok()) << last_message();
  EXPECT_EQ(BackupStore::totals(kept).file, kMiB);
  EXPECT_EQ(info().arena_bytes, 0u);
  store.drop_all(kept);
}

TEST_F(TiersTest, NoRoomAnywhere) {
  char folder[] = "/tmp/gmm-backup-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  configure(4 * kMiB, 4 * kMiB, 0, folder);
  device(16 * kMiB);
  rmdir(folder);
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, 16 * kMiB)}, kept).code(), GMM_ERROR_IO);
  EXPECT_EQ(kept_bytes(), 0u);
  EXPECT_TRUE(save({range(0, 8 * kMiB)}, kept).ok()) << last_message();
  store.drop_all(kept);
}

// The first registrations are those of the questions about zeros and of the segments of the arena.
TEST_F(TiersTest, WhatCannotBePageLockedGoesElsewhere) {
  constexpr uint64_t kSize = 24 * kMiB;
  engine.backend->pose_as(GMM_BACKEND_CUDA);
  configure(256 * kMiB, 256 * kMiB);
  device(2 * kSize);
  for (const uint64_t zeros : {8 * kMiB, kSize + 8 * kMiB}) std::memset(memory.data() + zeros, 0, 4 * kMiB);
  const std::vector<char> before = memory;
  const ByteRange ranges[] = {range(0, kSize), range(kSize, kSize)};
  KeptContents kept[2] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
  const BackupPart parts[] = {{&ranges[0], 1, &kept[0]}, {&ranges[1], 1, &kept[1]}};
  for (uint64_t k = 1; k <= 4; ++k) {
    store.trim();
    engine.backend->refuse(k, "pin");
    ASSERT_TRUE(store.save(Device{0}, GMM_CONTENTS_HOST, checksum_flag(), parts, 2, recorder.steps()).ok())
        << last_message();
    engine.backend->refuse(0);
    const BackupTotals first = BackupStore::totals(kept[0]), second = BackupStore::totals(kept[1]);
    const uint64_t zero = k == 1 ? 0 : 8 * kMiB;  // without a buffer the device cannot be asked
    EXPECT_EQ(first.zero + second.zero, zero);
    EXPECT_EQ(first.arena + second.arena + first.pageable + second.pageable, 2 * kSize - zero);
    if (k == 2) {
      EXPECT_EQ(first.arena + second.arena, 0u);
    }
    if (k == 3) {
      EXPECT_GT(first.arena, 0u);
      EXPECT_GT(second.pageable, 0u);
    }
    std::memset(memory.data(), 0x3c, 2 * kSize);
    ASSERT_TRUE(store.restore(Device{0}, parts, 2, recorder.steps()).ok()) << last_message();
    ASSERT_EQ(memory, before);
    for (KeptContents &each : kept) store.drop_all(each);
  }
}

TEST_F(TiersTest, ChunksAreFoundByAddress) {
  KeptContents kept{HostAllocator()};
  for (const uintptr_t base : {100, 200, 400}) {
    Chunk chunk;
    chunk.base = base;
    chunk.size = 50;
    ASSERT_TRUE(kept.chunks.push_back(chunk));
  }
  EXPECT_EQ(kept.first_chunk_behind(0), 0u);
  EXPECT_EQ(kept.first_chunk_behind(149), 0u);
  EXPECT_EQ(kept.first_chunk_behind(150), 1u);
  EXPECT_EQ(kept.first_chunk_behind(300), 2u);
  EXPECT_EQ(kept.first_chunk_behind(450), 3u);
}

TEST_F(TiersTest, AChunkTakesWholeBlocks) {
  EXPECT_EQ(size_in_tier(1), 4096u);
  EXPECT_EQ(size_in_tier(4096), 4096u);
  EXPECT_EQ(size_in_tier(kMaxChunk), kMaxChunk);
}

}  // namespace
}  // namespace gmm::test
