// SPDX-License-Identifier: Apache-2.0
#include "engine/space/page_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gmm {
namespace {

constexpr uintptr_t kMapBase = uintptr_t{3} << 40;
constexpr uint64_t kPage = uint64_t{2} << 20;

void *at(uintptr_t address) { return reinterpret_cast<void *>(address); }

TEST(PageMap, KnowsNothingAtFirst) {
  PageMap map{HostAllocator()};
  ASSERT_TRUE(map.init());
  EXPECT_EQ(map.find(nullptr), nullptr);
  EXPECT_EQ(map.find(at(kMapBase)), nullptr);
  EXPECT_EQ(map.find_extent(at(kMapBase)), nullptr);
  EXPECT_EQ(map.find(at(~uintptr_t{0})), nullptr);
  EXPECT_EQ(map.find(at(uintptr_t{1} << 48)), nullptr);
  EXPECT_FALSE(map.prepare(uintptr_t{1} << 48, kPage));
}

TEST(PageMap, WholePagesAndGranules) {
  PageMap map{HostAllocator()};
  ASSERT_TRUE(map.init());
  Span whole, left, right;
  Extent extent;
  ASSERT_TRUE(map.prepare(kMapBase, 4 * kPage));
  map.set(kMapBase, 4 * kPage, &whole);
  map.set_extent(kMapBase, 2 * kPage, &extent);
  EXPECT_EQ(map.find(at(kMapBase)), &whole);
  EXPECT_EQ(map.find(at(kMapBase + 4 * kPage - 1)), &whole);
  EXPECT_EQ(map.find(at(kMapBase + 4 * kPage)), nullptr);
  EXPECT_EQ(map.find(at(kMapBase - 1)), nullptr);
  EXPECT_EQ(map.find_extent(at(kMapBase + 2 * kPage - 1)), &extent);
  EXPECT_EQ(map.find_extent(at(kMapBase + 2 * kPage)), nullptr);
  const uint64_t cut = kPage + 5 * kGranule;
  ASSERT_TRUE(map.prepare_granules(kMapBase + cut, 4 * kPage - cut));
  EXPECT_EQ(map.find(at(kMapBase + cut)), &whole) << "a table starts with what the page said";
  map.set(kMapBase, cut, &left);
  map.set(kMapBase + cut, 4 * kPage - cut, &right);
  EXPECT_EQ(map.find(at(kMapBase + cut - 1)), &left);
  EXPECT_EQ(map.find(at(kMapBase + cut)), &right);
  EXPECT_EQ(map.find(at(kMapBase + 3 * kPage)), &right);
}

// A span that overlaps a new range has no promise any more, as it is not live.
TEST(PageMap, RandomRangesAgainstAModel) {
  PageMap map{HostAllocator()};
  ASSERT_TRUE(map.init());
  constexpr uint64_t kGranules = 1024;
  constexpr uintptr_t kBase = kMapBase - kGranules / 2 * kGranule;  // in two leaves
  ASSERT_TRUE(map.prepare(kBase, kGranules * kGranule));
  std::vector<Span> spans(50);
  std::vector<Span *> model(kGranules, nullptr);
  struct Range {
    uint64_t begin, end;
  };
  std::vector<Range> live;
  std::mt19937 random(5);
  uint64_t checked = 0;
  for (int step = 0; step < 2000; ++step) {
    const uint64_t begin = random() % kGranules,
                   end =
                       begin + 1 +
                       random() % (random() % 8 == 0 ? kGranules - begin : std::min<uint64_t>(kGranules - begin, 160));
    std::erase_if(live, [&](const Range &range) {
      if (range.end <= begin || end <= range.begin) return false;
      for (uint64_t i = range.begin; i < range.end; ++i) model[i] = nullptr;
      return true;
    });
    live.push_back({begin, end});
    Span *span = &spans[random() % spans.size()];
    ASSERT_TRUE(map.prepare_granules(kBase + begin * kGranule, (end - begin) * kGranule));
    if (random() % 2 == 0)
      map.set(kBase + begin * kGranule, (end - begin) * kGranule, span);
    else
      map.set_each(kBase + begin * kGranule, (end - begin) * kGranule, span);
    for (uint64_t i = begin; i < end; ++i) model[i] = span;
    for (uint64_t i = 0; i < kGranules; i += 1 + random() % 7)
      if (model[i] != nullptr) {
        ASSERT_EQ(map.find(at(kBase + i * kGranule + random() % kGranule)), model[i]) << i;
        ++checked;
      }
  }
  EXPECT_GT(checked, 100000u);
}

}  // namespace
}  // namespace gmm
