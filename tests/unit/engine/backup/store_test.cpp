// SPDX-License-Identifier: Apache-2.0
// Contents go out and come back, whatever tier keeps them.
#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class BackupTiersTest : public BackupTest, public testing::WithParamInterface<Tier> {};

uint64_t in_tier(const BackupTotals &totals, Tier tier) {
  return tier == Tier::kArena ? totals.arena : tier == Tier::kPageable ? totals.pageable : totals.file;
}

TEST_P(BackupTiersTest, ContentsComeBack) {
  only(GetParam());
  for (const uint64_t size : {uint64_t{1}, uint64_t{6912}, 4 * kMiB, (kStride == 1 ? 70 : 18) * kMiB + 5}) {
    for (const uint32_t flags : {0u, static_cast<uint32_t>(GMM_TAG_CHECKSUM)}) {
      const std::vector<char> before = device(size, static_cast<uint32_t>(size));
      KeptContents kept{HostAllocator()};
      ASSERT_TRUE(save({range(0, size)}, kept, flags).ok()) << last_message();
      check(kept);
      EXPECT_EQ(in_tier(BackupStore::totals(kept), GetParam()), size);
      std::memset(memory.data(), 0x5a, size);
      ASSERT_TRUE(restore({range(0, size)}, kept).ok()) << last_message();
      EXPECT_EQ(std::memcmp(memory.data(), before.data(), size), 0);
      std::vector<char> read(size);
      ASSERT_TRUE(store.read(kept, range(0, size), read.data()).ok()) << last_message();
      EXPECT_EQ(std::memcmp(read.data(), before.data(), size), 0);
      store.drop_all(kept);
      EXPECT_TRUE(kept.chunks.empty());
      const gmm_backup_info now = info();
      EXPECT_EQ(now.arena_used + now.pageable_bytes + now.file_bytes + now.zero_bytes, 0u);
    }
  }
}

TEST_P(BackupTiersTest, RangesAtAnyAddress) {
  only(GetParam());
  constexpr uint64_t kSize = 24 * kMiB;
  const std::vector<char> before = device(kSize);
  std::mt19937_64 random(7);
  for (uint32_t round = 0; round < (kStride == 1 ? 12 : 2); ++round) {
    std::vector<ByteRange> ranges;
    for (uint64_t at = random() % 5000; at < kSize;) {
      uint64_t size = 1 + random() % (random() % 3 == 0 ? 6 * kMiB : 9000);
      if (size > kSize - at) size = kSize - at;
      ranges.push_back(range(at, size));
      at += size + (random() % 2 == 0 ? 0 : random() % 5000);
    }
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save(ranges, kept, round % 2 == 0 ? GMM_TAG_CHECKSUM : 0).ok()) << last_message();
    check(kept);
    std::memset(memory.data(), 0, kSize);
    std::vector<char> expected(kSize, 0);
    for (const ByteRange &part : ranges) {
      const uint64_t offset = part.base - range(0, 0).base;
      std::memcpy(expected.data() + offset, before.data() + offset, part.size);
    }
    // Parts of chunks come back alone, and nothing else.
    const uint64_t half = kSize / 2 + 77;
    ASSERT_TRUE(restore({range(0, half)}, kept).ok()) << last_message();
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), half), 0);
    for (uint64_t i = half; i < half + 100; ++i) EXPECT_EQ(memory[i], 0);
    ASSERT_TRUE(restore({range(half, kSize - half)}, kept).ok()) << last_message();
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kSize), 0);
    std::memcpy(memory.data(), before.data(), kSize);
    store.drop_all(kept);
  }
}

TEST_P(BackupTiersTest, ZerosAreNotCopied) {
  only(GetParam());
  constexpr uint64_t kSize = 20 * kMiB;
  device(kSize);
  std::memset(memory.data() + 4 * kMiB, 0, 8 * kMiB);
  memory[16 * kMiB - 1] = 1;
  std::memset(memory.data() + 12 * kMiB, 0, 4 * kMiB - 1);  // one byte of it is not zero
  const std::vector<char> before = memory;
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kSize)}, kept).ok()) << last_message();
  EXPECT_EQ(BackupStore::totals(kept).zero, 8 * kMiB);
  EXPECT_EQ(info().skipped_bytes, 8 * kMiB);
  EXPECT_EQ(info().copied_bytes, 12 * kMiB);
  EXPECT_EQ(info().zero_bytes, 8 * kMiB);
  std::memset(memory.data(), 0x33, kSize);
  ASSERT_TRUE(restore({range(0, kSize)}, kept).ok()) << last_message();
  EXPECT_EQ(std::memcmp(memory.data(), before.data(), kSize), 0);
  std::vector<char> read(kSize);
  ASSERT_TRUE(store.read(kept, range(0, kSize), read.data()).ok());
  EXPECT_EQ(std::memcmp(read.data(), before.data(), kSize), 0);
  store.drop_all(kept);
}

TEST_P(BackupTiersTest, KeptChunksAreNotCopiedAgain) {
  only(GetParam());
  constexpr uint64_t kSize = 16 * kMiB;
  device(kSize);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(4 * kMiB, 6 * kMiB)}, kept).ok());
  const uint64_t copied = info().copied_bytes;
  std::vector<char> expected = memory;
  // What is declared unchanged and yet changed shows whether it was copied.
  std::memset(memory.data() + 5 * kMiB, 0x77, kMiB);
  ASSERT_TRUE(save({range(0, kSize)}, kept).ok()) << last_message();
  check(kept);
  EXPECT_EQ(info().copied_bytes - copied, kSize - 6 * kMiB);
  EXPECT_EQ(info().skipped_bytes, 6 * kMiB);
  std::memset(memory.data(), 0, kSize);
  ASSERT_TRUE(restore({range(0, kSize)}, kept).ok());
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kSize), 0);
  // A chunk that lies in the ranges in part only is replaced.
  const uint64_t cut = kept.chunks[0].size / 2;
  std::memset(memory.data(), 0x11, cut);
  std::memset(expected.data(), 0x11, cut);
  ASSERT_TRUE(save({range(0, cut)}, kept).ok());
  check(kept);
  std::memset(memory.data(), 0, cut);
  ASSERT_TRUE(restore({range(0, kSize)}, kept).ok());
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), cut), 0);
  store.drop_all(kept);
  EXPECT_EQ(info().arena_used + info().pageable_bytes + info().file_bytes, 0u);
}

TEST_P(BackupTiersTest, DropTakesWhatOverlaps) {
  only(GetParam());
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
}

TEST_P(BackupTiersTest, PartsAreToldInOrder) {
  only(GetParam());
  device(12 * kMiB);
  const std::vector<char> before = memory;
  const ByteRange first[] = {range(0, 5 * kMiB)}, third[] = {range(6 * kMiB, kMiB), range(8 * kMiB, 4 * kMiB)};
  KeptContents kept[3] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
  const BackupPart parts[] = {{first, 1, &kept[0]}, {nullptr, 0, &kept[1]}, {third, 2, &kept[2]}};
  // After a part its memory may go: what is written there then must not be kept.
  recorder.on_part = [&](const char *, uint64_t part) {
    if (part == 0) std::memset(memory.data(), 0x44, 5 * kMiB);
  };
  ASSERT_TRUE(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 3, recorder.steps()).ok()) << last_message();
  EXPECT_EQ(recorder.events, (std::vector<std::string>{"after0", "after1", "after2"}));
  EXPECT_EQ(recorder.progress.front(), 0u);
  EXPECT_EQ(recorder.progress.back(), 10 * kMiB);
  recorder = Recorder();
  std::memset(memory.data(), 0x55, 12 * kMiB);
  // Before a part there may be no memory.
  recorder.on_part = [&](const char *what, uint64_t part) {
    if (part == 2 && std::strcmp(what, "before") == 0) std::memset(memory.data() + 6 * kMiB, 0, 6 * kMiB);
  };
  ASSERT_TRUE(store.restore(Device{0}, parts, 3, recorder.steps()).ok());
  std::vector<std::string> order;
  for (const std::string &event : recorder.events)
    if (event[0] == 'a') order.push_back(event);
  EXPECT_EQ(order, (std::vector<std::string>{"after0", "after1", "after2"}));
  EXPECT_EQ(std::memcmp(memory.data(), before.data(), 5 * kMiB), 0);
  EXPECT_EQ(std::memcmp(memory.data() + 6 * kMiB, before.data() + 6 * kMiB, kMiB), 0);
  EXPECT_EQ(std::memcmp(memory.data() + 8 * kMiB, before.data() + 8 * kMiB, 4 * kMiB), 0);
  for (KeptContents &each : kept) store.drop_all(each);
}

TEST_P(BackupTiersTest, CancelAtEachMomentLeavesWhatWas) {
  only(GetParam());
  constexpr uint64_t kSize = 40 * kMiB;
  device(kSize);
  const std::vector<char> before = memory;
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, 4 * kMiB)}, kept).ok());
  const gmm_backup_info at_first = info();
  for (uint64_t k = 1;; k += kStride) {
    recorder = Recorder();
    recorder.cancel_at = k;
    const Status status = save({range(0, kSize)}, kept);
    if (status.ok()) {
      EXPECT_LT(recorder.progress.size(), k);
      EXPECT_GE(k, 3u);
      break;
    }
    EXPECT_EQ(status.code(), GMM_ERROR_CANCELLED);
    EXPECT_EQ(kept.chunks.size(), 1u);
    EXPECT_EQ(info().arena_used, at_first.arena_used);
    EXPECT_EQ(info().pageable_bytes, at_first.pageable_bytes);
    EXPECT_EQ(info().file_bytes, at_first.file_bytes);
  }
  for (uint64_t k = 1;; k += kStride) {
    recorder = Recorder();
    recorder.cancel_at = k;
    std::memset(memory.data(), 0, kSize);
    if (restore({range(0, kSize)}, kept).ok()) break;
  }
  EXPECT_EQ(std::memcmp(memory.data(), before.data(), kSize), 0);
  store.drop_all(kept);
}

INSTANTIATE_TEST_SUITE_P(All, BackupTiersTest, testing::Values(Tier::kArena, Tier::kPageable, Tier::kFile),
                         [](const auto &tested) {
                           return std::string(tested.param == Tier::kArena      ? "Arena"
                                              : tested.param == Tier::kPageable ? "Pageable"
                                                                                : "File");
                         });

TEST_F(BackupTest, TiersFollowEachOther) {
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

TEST_F(BackupTest, FileContentsGoToTheFile) {
  device(kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kMiB)}, kept, 0, GMM_CONTENTS_FILE).ok()) << last_message();
  EXPECT_EQ(BackupStore::totals(kept).file, kMiB);
  EXPECT_EQ(info().arena_bytes, 0u);
  store.drop_all(kept);
}

TEST_F(BackupTest, PrepareAndTrim) {
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

// Where else in the process's memory these 64 bytes lie: the tier's copy of them.
char *find_in_memory(const char *wanted) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return nullptr;
  char line[512];
  char *found = nullptr;
  while (found == nullptr && fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[5] = {}, name[2] = {};
    // Tiers are anonymous, and their chunks start at pages.
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %1s", &from, &to, rights, name) != 3) continue;
    if (from < uint64_t{1} << 32) continue;  // the address sanitizer's own, which must not be read
    if (rights[0] != 'r' || rights[1] != 'w' || to - from < 12 * kMiB || to - from > 4096 * kMiB) continue;
    for (unsigned long at = from; at < to && found == nullptr; at += 4096)
      if (reinterpret_cast<char *>(at) != wanted && std::memcmp(reinterpret_cast<char *>(at), wanted, 64) == 0)
        found = reinterpret_cast<char *>(at);
  }
  fclose(maps);
  return found;
}

TEST_F(BackupTest, DamageIsFound) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable}) {
    only(tier);
    device(12 * kMiB);
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save({range(0, 12 * kMiB)}, kept, GMM_TAG_CHECKSUM).ok());
    char *damaged = find_in_memory(memory.data() + 4 * kMiB);
    ASSERT_NE(damaged, nullptr);
    *damaged ^= 4;
    EXPECT_EQ(restore({range(0, 12 * kMiB)}, kept).code(), GMM_ERROR_CORRUPT);
    char text[32];
    std::snprintf(text, sizeof text, "%#lx", static_cast<unsigned long>(kept.chunks[1].base));
    EXPECT_NE(std::string(last_message()).find(text), std::string::npos) << last_message();
    std::vector<char> out(12 * kMiB);
    EXPECT_EQ(store.read(kept, range(4 * kMiB, 100), out.data()).code(), GMM_ERROR_CORRUPT);
    EXPECT_TRUE(store.read(kept, range(0, 4 * kMiB), out.data()).ok());
    *damaged ^= 4;
    EXPECT_TRUE(restore({range(0, 12 * kMiB)}, kept).ok());
    store.drop_all(kept);
  }
}

}  // namespace
}  // namespace gmm::test
