// SPDX-License-Identifier: Apache-2.0
// Contents go out and come back through every tier. tests/api/kth_failure.c lets each call of the driver fail.
#include "engine/backup/transfer.h"

#include "engine/backup/test_support.h"
#include "engine/sanitizer.h"

namespace gmm::test {
namespace {

class TransferTest : public BackupTest, public testing::WithParamInterface<Tier> {};

uint64_t in_tier(const BackupTotals &totals, Tier tier) {
  return tier == Tier::kArena ? totals.arena : tier == Tier::kPageable ? totals.pageable : totals.file;
}

TEST_P(TransferTest, RangesAtAnyAddress) {
  only(GetParam());
  constexpr uint64_t kSize = 24 * kMiB;
  device(kSize);
  std::memset(memory.data() + 7 * kMiB, 0, 6 * kMiB);
  const std::vector<char> before = memory;
  std::mt19937_64 random(7);
  for (uint32_t round = 0; round < (kFewer == 1 ? 12 : 2); ++round) {
    std::vector<ByteRange> ranges;
    for (uint64_t at = random() % 5000; at < kSize;) {
      uint64_t size = 1 + random() % (random() % 3 == 0 ? 6 * kMiB : 9000);
      if (size > kSize - at) size = kSize - at;
      ranges.push_back(range(at, size));
      at += size + (random() % 2 == 0 ? 0 : random() % 5000);
    }
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save(ranges, kept, round % 2 == 0 ? checksum_flag() : 0).ok()) << last_message();
    check(kept);
    std::memset(memory.data(), 0x5a, kSize);
    std::vector<char> expected = memory, read(kSize);
    uint64_t bytes = 0;
    for (const ByteRange &part : ranges) {
      const uint64_t offset = part.base - range(0, 0).base;
      std::memcpy(expected.data() + offset, before.data() + offset, part.size);
      ASSERT_TRUE(store.read(kept, part, read.data()).ok()) << last_message();
      EXPECT_EQ(std::memcmp(read.data(), before.data() + offset, part.size), 0);
      bytes += part.size;
    }
    const BackupTotals totals = BackupStore::totals(kept);
    EXPECT_EQ(in_tier(totals, GetParam()) + totals.zero, bytes);
    // Parts of chunks come back alone, and nothing else.
    const uint64_t half = kSize / 2 + 77;
    ASSERT_TRUE(restore({range(0, half)}, kept).ok()) << last_message();
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), half), 0);
    for (uint64_t i = half; i < half + 100; ++i) EXPECT_EQ(memory[i], 0x5a);
    ASSERT_TRUE(restore({range(half, kSize - half)}, kept).ok()) << last_message();
    EXPECT_EQ(std::memcmp(memory.data(), expected.data(), kSize), 0);
    std::memcpy(memory.data(), before.data(), kSize);
    store.drop_all(kept);
    EXPECT_EQ(kept_bytes(), 0u);
  }
}

TEST_P(TransferTest, AChunkThatNewOnesOverlapIsReplaced) {
  only(GetParam());
  device(4 * kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, 4 * kMiB)}, kept).ok());
  const uint64_t cut = kept.chunks[0].size / 2;
  std::memset(memory.data(), 0x11, cut);
  const std::vector<char> expected = memory;
  ASSERT_TRUE(save({range(0, cut)}, kept).ok());
  check(kept);
  std::memset(memory.data(), 0, cut);
  ASSERT_TRUE(restore({range(0, cut)}, kept).ok());
  EXPECT_EQ(memory, expected);
  store.drop_all(kept);
  EXPECT_EQ(kept_bytes(), 0u);
}

TEST_P(TransferTest, PartsAreReportedInOrder) {
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

INSTANTIATE_TEST_SUITE_P(All, TransferTest, testing::Values(Tier::kArena, Tier::kPageable, Tier::kFile),
                         [](const auto &tested) {
                           return std::string(tested.param == Tier::kArena      ? "Arena"
                                              : tested.param == Tier::kPageable ? "Pageable"
                                                                                : "File");
                         });

TEST_F(BackupTest, StepsMayFail) {
  device(40 * kMiB);
  const std::vector<char> before = memory;
  const ByteRange ranges[] = {range(0, 20 * kMiB), range(20 * kMiB, 20 * kMiB)};
  KeptContents kept[2] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
  const BackupPart parts[] = {{&ranges[0], 1, &kept[0]}, {&ranges[1], 1, &kept[1]}};
  for (uint64_t k = 1; k <= 2; ++k) {
    recorder = Recorder();
    recorder.fail_at = k;
    EXPECT_EQ(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).code(), GMM_ERROR_DRIVER);
    EXPECT_EQ(recorder.events.size(), k);
    EXPECT_TRUE(kept[0].chunks.empty() && kept[1].chunks.empty());
    EXPECT_EQ(kept_bytes(), 0u);
  }
  recorder = Recorder();
  ASSERT_TRUE(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).ok());
  for (uint64_t k = 1; k <= 4; ++k) {
    recorder = Recorder();
    recorder.fail_at = k;
    EXPECT_EQ(store.restore(Device{0}, parts, 2, recorder.steps()).code(), GMM_ERROR_DRIVER);
    EXPECT_EQ(recorder.events.size(), k) << "no part is told of after one that failed";
  }
  recorder = Recorder();
  std::memset(memory.data(), 0, 40 * kMiB);
  ASSERT_TRUE(store.restore(Device{0}, parts, 2, recorder.steps()).ok());
  EXPECT_EQ(memory, before);
  for (KeptContents &each : kept) store.drop_all(each);
}

// The driver refuses even to wait: the device may still copy, so nobody may free or reuse that host memory.
TEST_F(BackupTest, ARefusedWaitAbandonsHostMemory) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable}) {
    only(tier);
    device(16 * kMiB);
    const std::vector<char> before = memory;
    const ByteRange ranges[] = {range(0, 8 * kMiB), range(8 * kMiB, 8 * kMiB)};
    KeptContents kept[2] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
    const BackupPart parts[] = {{&ranges[0], 1, &kept[0]}, {&ranges[1], 1, &kept[1]}};
    recorder = Recorder();
    recorder.on_part = [&](const char *, uint64_t) { engine.backend->refuse(1, nullptr, true); };
    recorder.fail_at = 1;
    {
      const LeaksOnPurpose abandoned_events;
      EXPECT_EQ(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).code(), GMM_ERROR_DRIVER);
    }
    engine.backend->refuse(0);
    ASSERT_TRUE(engine.backend->synchronize(Device{0}).ok());  // late copies end before the test writes to `memory`
    EXPECT_TRUE(kept[0].chunks.empty() && kept[1].chunks.empty());
    EXPECT_EQ(kept_bytes(), 0u);
    const uint64_t arena_bytes = info().arena_bytes;
    store.trim();
    EXPECT_EQ(info().arena_bytes, arena_bytes) << "abandoned memory does not go back";
    // The store works on.
    recorder = Recorder();
    ASSERT_TRUE(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).ok()) << last_message();
    std::memset(memory.data(), 0, 16 * kMiB);
    ASSERT_TRUE(store.restore(Device{0}, parts, 2, recorder.steps()).ok()) << last_message();
    EXPECT_EQ(memory, before);
    for (KeptContents &each : kept) store.drop_all(each);
    EXPECT_GT(store.trim(), 0u) << "the slots of the last transfer go back";
  }
}

}  // namespace
}  // namespace gmm::test
