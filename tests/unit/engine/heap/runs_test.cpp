// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/runs.h"

#include <random>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kRegion = uint64_t{8} << 20;

// One region of free memory, without a heap around it.
class RunsTest : public testing::Test {
 protected:
  void SetUp() override {
    const uintptr_t base = uintptr_t{1} << 40;
    region.base = base;
    region.size = kRegion;
    ASSERT_TRUE(engine.core.page_map.prepare(base, kRegion));
    Span *all = runs.new_span(SpanState::kFree, base, kRegion, &region);
    ASSERT_NE(all, nullptr);
    runs.add_region(&region, all);
    runs.list(all);
  }
  void TearDown() override {
    check();
    for (Span *span = region.first, *next; span != nullptr; span = next) {
      next = span->after;
      runs.unlist(span);
      runs.end_span(span);
    }
    List<Region, HeapRegions>::remove(&region);
  }
  // The spans tile the region, and what is listed is what is free.
  void check() {
    uintptr_t at = region.base;
    uint64_t free = 0;
    Span *last = nullptr;
    for (Span *span = region.first; span != nullptr; last = span, span = span->after) {
      ASSERT_EQ(span->begin(), at);
      ASSERT_EQ(span->before, last);
      ASSERT_EQ(span->region, &region);
      ASSERT_EQ(span->listed, !span->live());
      if (last != nullptr && last->is(SpanState::kFree) && span->is(SpanState::kFree)) {
        ASSERT_NE(last->streams, span->streams);
      }
      ASSERT_FALSE(last != nullptr && last->is(SpanState::kUnbacked) && span->is(SpanState::kUnbacked));
      if (span->is(SpanState::kFree)) free += span->bytes();
      at = span->end();
    }
    ASSERT_EQ(at, region.base + kRegion);
    ASSERT_EQ(runs.free_bytes(), free);
  }
  Span *take(uint64_t count, uint64_t alignment = kGranule) {
    Span *run = runs.free().find(count, alignment, ~uint64_t{0}), *taken = nullptr;
    if (run == nullptr) return nullptr;
    EXPECT_TRUE(runs.carve(run, count * kGranule, alignment, &taken).ok());
    EXPECT_EQ(taken->begin() % alignment, 0u);
    EXPECT_EQ(taken->bytes(), count * kGranule);
    taken->streams = 0;
    taken->state = SpanState::kLarge;
    return taken;
  }

  Engine engine;
  Region region;
  Runs runs{engine.core, nullptr, false};
};

TEST_F(RunsTest, NeighboursOfTheSameStreamsMerge) {
  Span *a = take(4), *b = take(4), *c = take(4);
  c->streams = 2;
  runs.make_free(c);
  a->streams = 1;
  runs.make_free(a);
  check();
  b->streams = 1;
  Span *run = runs.make_free(b);
  EXPECT_EQ(run->begin(), region.base.load());
  EXPECT_EQ(run->bytes(), 8 * kGranule);
  check();
  runs.merge_all(true);
  EXPECT_EQ(region.first->bytes(), kRegion);
  EXPECT_EQ(region.first->streams, 3u);
}

TEST_F(RunsTest, AnAlignedBlockLeavesTheHeadFree) {
  take(1);
  Span *aligned = take(8, uint64_t{1} << 20);
  EXPECT_EQ(aligned->begin(), region.base + (uint64_t{1} << 20));
  EXPECT_TRUE(aligned->before->is(SpanState::kFree));
  EXPECT_TRUE(aligned->after->is(SpanState::kFree));
}

TEST_F(RunsTest, HolesAreOneWithThoseAroundThem) {
  Span *a = take(4), *b = take(4), *c = take(4);
  runs.make_hole(a);
  runs.make_hole(c);
  check();
  runs.make_hole(b);
  EXPECT_EQ(region.first->bytes(), 12 * kGranule);
  EXPECT_EQ(runs.holes().front(), region.first);
  EXPECT_EQ(runs.holes().next(region.first), nullptr);
}

TEST_F(RunsTest, RunsOfAPausedRegionAreInNoListAndThoseOfADedicatedOneInAnother) {
  Span *run = region.first;
  runs.unlist(run);
  region.paused = 1;
  runs.list(run);
  EXPECT_FALSE(run->listed);
  EXPECT_EQ(runs.free_bytes(), 0u);
  region.paused = 0;
  region.dedicated = true;
  runs.list(run);
  EXPECT_EQ(runs.dedicated().front(), run);
  EXPECT_EQ(runs.free().bytes(), 0u);
  EXPECT_EQ(runs.free_bytes(), kRegion);
}

TEST_F(RunsTest, RandomBlocksTileTheRegion) {
  std::mt19937 random(3);
  std::vector<Span *> live;
  for (int step = 0; step < 4000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      if (Span *taken = take(1 + random() % 40, kGranule << (random() % 4))) live.push_back(taken);
    } else {
      const size_t index = random() % live.size();
      live[index]->streams = random() % 3;
      runs.make_free(live[index]);
      live[index] = live.back();
      live.pop_back();
    }
    if (step % 16 == 0) check();
    if (HasFatalFailure()) return;
  }
  for (Span *span : live) runs.make_free(span);
  runs.merge_all(true);
  EXPECT_EQ(region.first->bytes(), kRegion);
}

}  // namespace
}  // namespace gmm::test
