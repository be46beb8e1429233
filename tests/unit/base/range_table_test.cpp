// SPDX-License-Identifier: Apache-2.0
#include "base/range_table.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace gmm {
namespace {

TEST(RangeTable, FindsTheRangeAroundAnAddress) {
  RangeTable table{HostAllocator()};
  Range out;
  EXPECT_FALSE(table.find(0, &out));
  std::vector<Range> ranges;
  for (uint64_t i = 0; i < 100; ++i) ranges.push_back(Range{1000 * i + 500, 100 + i, i});
  ASSERT_TRUE(table.reserve(ranges.size()));
  table.set(ranges.data(), ranges.size());
  for (uint64_t address = 0; address < 101000; ++address) {
    const uint64_t i = address < 500 ? 0 : (address - 500) / 1000;
    const bool inside = address >= 500 && i < 100 && address - ranges[i].base < ranges[i].size;
    ASSERT_EQ(table.find(address, &out), inside) << address;
    if (inside) {
      ASSERT_EQ(out.value, i);
    }
  }
  table.set(ranges.data(), 1);
  EXPECT_TRUE(table.find(500, &out));
  EXPECT_FALSE(table.find(1500, &out));
  table.set(nullptr, 0);
  EXPECT_FALSE(table.find(500, &out));
}

TEST(RangeTable, GrowingKeepsWhatIsThere) {
  RangeTable table{HostAllocator()};
  const Range range{16, 16, 3};
  ASSERT_TRUE(table.reserve(1));
  table.set(&range, 1);
  ASSERT_TRUE(table.reserve(1000));
  Range out;
  EXPECT_TRUE(table.find(31, &out));
  EXPECT_EQ(out.value, 3u);
}

// Readers see one generation whole: value, size and base belong together.
TEST(RangeTable, ReadersAgainstAWriter) {
  RangeTable table{HostAllocator()};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  std::atomic<uint64_t> hits{0};
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      while (!stop) {
        Range out;
        if (!table.find(random() % 40000, &out)) continue;
        ASSERT_EQ(out.value, out.base * 3 + out.size);
        ++hits;
      }
    });
  std::mt19937 random(9);
  for (int step = 0; step < 4000 || hits < 1000; ++step) {
    std::vector<Range> ranges;
    const uint64_t count = random() % 200;
    for (uint64_t i = 0; i < count; ++i) {
      Range range{200 * i + random() % 50, 1 + random() % 150, 0};
      range.value = range.base * 3 + range.size;
      ranges.push_back(range);
    }
    ASSERT_TRUE(table.reserve(count));
    table.set(ranges.data(), count);
    if (step % 100 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread &reader : readers) reader.join();
}

}  // namespace
}  // namespace gmm
