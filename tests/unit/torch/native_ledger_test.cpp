// SPDX-License-Identifier: Apache-2.0
// The book of PyTorch's blocks: counters by PyTorch's names, live blocks by address, the history's ring, and the parts
// of a snapshot.
#include "native_ledger.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <unordered_map>

namespace gmm_torch {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(NativeStats, CountsSmallAndLargeBlocksByTheRoundedSize) {
  DeviceStats stats;
  stats.allocate(rounded(1), 1);
  stats.allocate(rounded(kMiB), kMiB);
  stats.allocate(rounded(kMiB + 1), kMiB + 1);
  const Counters now = stats.read();
  EXPECT_EQ(now.allocation[kAggregate].current, 3);
  EXPECT_EQ(now.allocation[kSmall].current, 2);
  EXPECT_EQ(now.allocation[kLarge].current, 1);
  EXPECT_EQ(now.allocated_bytes[kSmall].current, static_cast<int64_t>(512 + kMiB));
  EXPECT_EQ(now.allocated_bytes[kLarge].current, static_cast<int64_t>(kMiB + 512));
  EXPECT_EQ(now.requested_bytes[kAggregate].current, static_cast<int64_t>(2 * kMiB + 2));
}

TEST(NativeStats, PeaksAndTotalsStayUntilTheirReset) {
  DeviceStats stats;
  stats.allocate(1024, 1000);
  stats.allocate(2048, 2000);
  stats.release(2048, 2000, false);
  Counters now = stats.read();
  EXPECT_EQ(now.allocated_bytes[kAggregate].current, 1024);
  EXPECT_EQ(now.allocated_bytes[kAggregate].peak, 3072);
  EXPECT_EQ(now.allocated_bytes[kAggregate].allocated, 3072);
  EXPECT_EQ(now.allocated_bytes[kAggregate].freed, 2048);
  stats.reset_peaks();
  stats.reset_accumulated();
  now = stats.read();
  EXPECT_EQ(now.allocated_bytes[kAggregate].current, 1024);
  EXPECT_EQ(now.allocated_bytes[kAggregate].peak, 1024);
  EXPECT_EQ(now.allocated_bytes[kAggregate].allocated, 0);
  EXPECT_EQ(now.allocated_bytes[kAggregate].freed, 0);
}

TEST(NativeStats, ABlockThatAStreamStillUsesIsActive) {
  DeviceStats stats;
  stats.allocate(1024, 1000);
  stats.release(1024, 1000, true);
  EXPECT_EQ(stats.read().allocation[kAggregate].current, 0);
  EXPECT_EQ(stats.read().active_bytes[kAggregate].current, 1024);
  stats.deactivate(1024);
  EXPECT_EQ(stats.read().active_bytes[kAggregate].current, 0);
}

TEST(NativeStats, AReservedPeakBetweenTwoLooksIsSeenAndGoesWithTheReset) {
  DeviceStats stats;
  stats.observe(10, 10, 1);
  stats.observe(20, 100, 2);  // it was 100 meanwhile
  EXPECT_EQ(stats.read().reserved_bytes[kAggregate].peak, 100);
  EXPECT_EQ(stats.read().reserved_bytes[kAggregate].current, 20);
  stats.reset_peaks();
  stats.observe(30, 100, 2);  // the heaps' own peak has no reset
  EXPECT_EQ(stats.read().reserved_bytes[kAggregate].peak, 30);
  stats.observe(30, 120, 2);
  EXPECT_EQ(stats.read().reserved_bytes[kAggregate].peak, 120);
  EXPECT_EQ(stats.read().segment[kAggregate].current, 2);
}

TEST(NativeStats, TheSharesOfSmallAndLargeAddUp) {
  DeviceStats stats;
  stats.allocate(4096, 4096);
  stats.allocate(3 * kMiB, 3 * kMiB);
  stats.observe(8 * kMiB, 8 * kMiB, 1);
  const Counters now = stats.read();
  EXPECT_EQ(now.reserved_bytes[kSmall].current + now.reserved_bytes[kLarge].current,
            now.reserved_bytes[kAggregate].current);
}

Part part_of(uint64_t address, uint64_t size, bool active) {
  Part part;
  part.address = address;
  part.size = size;
  part.allocated = part.active = active;
  return part;
}

// As PyTorch has it: a segment without live blocks could go back to the driver, so it is not split.
TEST(NativeStats, InactiveIsWhatIsFreeBesideLiveBlocks) {
  Inactive now;
  add_inactive({part_of(0, kMiB, false)}, &now);
  add_inactive({part_of(0, kMiB, true)}, &now);
  EXPECT_EQ(now.blocks, 0);
  EXPECT_EQ(now.bytes, 0);
  add_inactive({part_of(0, 512, false), part_of(512, 512, true), part_of(1024, 1024, false)}, &now);
  EXPECT_EQ(now.blocks, 2);
  EXPECT_EQ(now.bytes, 1536);
  DeviceStats stats;
  stats.observe_inactive(now);
  stats.observe_inactive({1, 1024});
  for (const Type type : {kAggregate, kLarge}) {
    const Stat count = stats.read().inactive_split[type], bytes = stats.read().inactive_split_bytes[type];
    EXPECT_EQ(count.current, 1);
    EXPECT_EQ(count.peak, 2);
    EXPECT_EQ(count.allocated, 2);
    EXPECT_EQ(count.freed, 1);
    EXPECT_EQ(bytes.current, 1024);
    EXPECT_EQ(bytes.peak, 1536);
  }
  EXPECT_EQ(stats.read().inactive_split[kSmall].peak, 0);
}

TEST(NativeStats, EachChangeOfABlockIsAnotherState) {
  DeviceStats stats;
  uint64_t before = stats.changes();
  const auto changed = [&] { return stats.changes() != std::exchange(before, stats.changes()); };
  stats.allocate(512, 512);
  EXPECT_TRUE(changed());
  stats.release(512, 512, true);
  EXPECT_TRUE(changed());
  stats.deactivate(512);
  EXPECT_TRUE(changed());
  stats.observe(1, 1, 1);
  stats.reset_accumulated();
  EXPECT_FALSE(changed());
}

Live live_at(uint64_t address, uint64_t size) {
  Live live;
  live.memory = reinterpret_cast<void *>(address);
  live.requested = size;
  return live;
}

// Addresses of one page stand in one run of a shard: a removal there must leave the others within reach.
TEST(NativeLedger, FindsEveryBlockAmongRandomInsertionsAndRemovals) {
  Ledger ledger;
  std::unordered_map<uint64_t, uint64_t> model;
  uint64_t random = 88172645463325252ull;
  for (uint32_t step = 0; step < 200000; ++step) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const uint64_t address = 0x700000000000ull + (random % 5000) * 256;
    Live out;
    if (model.count(address) != 0) {
      ASSERT_TRUE(ledger.take(reinterpret_cast<void *>(address), &out));
      ASSERT_EQ(out.requested, model[address]);
      model.erase(address);
    } else {
      ASSERT_FALSE(ledger.look(reinterpret_cast<void *>(address), &out));
      ledger.insert(live_at(address, step));
      model[address] = step;
    }
  }
  size_t count = 0;
  ledger.each([&](const Live &live) {
    ++count;
    EXPECT_EQ(model[reinterpret_cast<uintptr_t>(live.memory)], live.requested);
  });
  EXPECT_EQ(count, model.size());
}

TEST(NativeLedger, ThreadsThatFreeEachOthersBlocksLoseNone) {
  Ledger ledger;
  constexpr uint64_t kBlocks = 20000;
  std::atomic<uint64_t> made{0}, taken{0};
  std::thread maker([&] {
    for (uint64_t i = 1; i <= kBlocks; ++i) {
      ledger.insert(live_at(i * 512, i));
      made.store(i, std::memory_order_release);
    }
  });
  std::thread taker([&] {
    for (uint64_t i = 1; i <= kBlocks; ++i) {
      while (made.load(std::memory_order_acquire) < i) std::this_thread::yield();
      Live out;
      if (ledger.take(reinterpret_cast<void *>(i * 512), &out) && out.requested == i) ++taken;
    }
  });
  maker.join();
  taker.join();
  EXPECT_EQ(taken.load(), kBlocks);
}

TEST(NativeRing, KeepsTheLastEntriesInOrder) {
  Ring<int> ring;
  ring.resize(3);
  for (int i = 0; i < 5; ++i) ring.add(i);
  EXPECT_EQ(ring.read(), (std::vector<int>{2, 3, 4}));
  ring.resize(2);
  EXPECT_EQ(ring.read(), (std::vector<int>{3, 4}));
  ring.resize(4);
  for (int i = 5; i < 8; ++i) ring.add(i);
  EXPECT_EQ(ring.read(), (std::vector<int>{4, 5, 6, 7}));
  ring.clear();
  EXPECT_TRUE(ring.read().empty());
}

TEST(NativeSnapshot, PartsCoverARangeWithoutGaps) {
  std::vector<Part> live(2);
  live[0].address = 1512;
  live[0].size = 512;
  live[0].allocated = true;
  live[1].address = 4000;
  live[1].size = 512;
  live[1].allocated = true;
  const std::vector<Part> parts = parts_of({1000, 4000}, live);
  ASSERT_EQ(parts.size(), 5u);
  uint64_t at = 1000;
  for (const Part &part : parts) {
    EXPECT_EQ(part.address, at);
    at += part.size;
  }
  EXPECT_EQ(at, 5000u);
  EXPECT_FALSE(parts[0].allocated);
  EXPECT_TRUE(parts[1].allocated);
}

TEST(NativeSnapshot, RangesJoinAndLeaveTheHolesOut) {
  const std::vector<Range> ranges = joined({{200, 100}, {0, 100}, {100, 100}, {500, 10}});
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].size, 300u);
  const std::vector<Range> left = without(ranges, {{250, 50}, {50, 50}});
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].size, 50u);
  EXPECT_EQ(left[1].address, 100u);
  EXPECT_EQ(left[1].size, 150u);
  EXPECT_EQ(left[2].address, 500u);
}

}  // namespace
}  // namespace gmm_torch
