// SPDX-License-Identifier: Apache-2.0
#include "engine/space/free_runs.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace gmm {
namespace {

std::unique_ptr<Span> make_run(uintptr_t base, uint64_t count, uint64_t streams = 0) {
  auto run = std::make_unique<Span>();
  run->base = base;
  run->size = count * kGranule;
  run->streams = streams;
  return run;
}

bool fits(const Span &run, uint64_t count, uint64_t alignment, uint64_t allowed) {
  return (run.streams & ~allowed) == 0 && FreeRuns::aligned_start(&run, alignment) + count * kGranule <= run.end();
}

// Where regions go as a whole, the best of a class is found (bins are searched whole here: fewer runs than the search's
// bound). Else one that fits.
class FreeRunsOf : public testing::TestWithParam<bool> {};

TEST_P(FreeRunsOf, FindsWhatFitsAsANaiveModelDoes) {
  const bool whole_regions = GetParam();
  std::mt19937 random(11);
  FreeRuns runs(whole_regions);
  Region region;
  region.size = UINT64_MAX;
  std::vector<std::unique_ptr<Span>> all;
  for (int step = 0; step < 20000; ++step) {
    if (all.size() < 40 && random() % 2 == 0) {
      const uint64_t count = 1 + random() % (uint64_t{1} << (random() % 12));
      all.push_back(make_run((static_cast<uint64_t>(step) + 1) << 40 | (random() % 200) * kGranule, count,
                             random() % 3 == 0 ? uint64_t{1} << random() % 3 : 0));
      all.back()->region = &region;
      runs.insert(all.back().get());
      EXPECT_TRUE(all.back()->listed);
    } else if (!all.empty()) {
      const uint64_t count = 1 + random() % 1000;
      const uint64_t alignment = kGranule << (random() % 4 == 0 ? random() % 8 : 0);
      const uint64_t allowed = random() % 8;
      uint64_t best = 0;
      for (const auto &run : all)
        if (fits(*run, count, alignment, allowed) && (best == 0 || run->bytes() < best)) best = run->bytes();
      Span *found = runs.find(count, alignment, allowed);
      ASSERT_EQ(found != nullptr, best != 0);
      size_t gone = random() % all.size();
      if (found != nullptr) {
        ASSERT_TRUE(fits(*found, count, alignment, allowed));
        if (whole_regions) {
          ASSERT_EQ(found->bytes(), best);
        }
        for (size_t i = 0; i < all.size(); ++i)
          if (all[i].get() == found) gone = i;
      }
      runs.remove(all[gone].get());
      EXPECT_FALSE(all[gone]->listed);
      std::swap(all[gone], all.back());
      all.pop_back();
    }
    uint64_t bytes = 0, seen = 0;
    for (const auto &run : all) bytes += run->bytes();
    ASSERT_EQ(runs.bytes(), bytes);
    runs.for_each([&](Span *) { ++seen; });
    ASSERT_EQ(seen, all.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Heaps, FreeRunsOf, testing::Bool());

TEST(FreeRuns, TheLowestRunThatFitsComesFirst) {
  FreeRuns runs;
  auto large = make_run(64 * kGranule, 40), small = make_run(256 * kGranule, 10), exact = make_run(512 * kGranule, 8),
       lower_of_class = make_run(8 * kGranule, 8, 2);
  for (Span *run : {exact.get(), large.get(), small.get(), lower_of_class.get()}) runs.insert(run);
  EXPECT_EQ(runs.find(8, kGranule, 0), large.get()) << "not the one of just the size";
  EXPECT_EQ(runs.find(8, kGranule, 2), lower_of_class.get()) << "which another stream freed";
  runs.remove(lower_of_class.get());
  runs.remove(large.get());
  EXPECT_EQ(runs.find(8, kGranule, 0), small.get());
  runs.remove(small.get());
  EXPECT_EQ(runs.find(8, kGranule, 0), exact.get());
  EXPECT_EQ(runs.find(9, kGranule, 0), nullptr);
}

TEST(FreeRuns, ARunThatMustWaitHidesNoOther) {
  FreeRuns runs;
  auto waits = make_run(64 * kGranule, 40, 1), behind = make_run(512 * kGranule, 44),
       other = make_run(300 * kGranule, 90);
  for (Span *run : {other.get(), behind.get(), waits.get()}) runs.insert(run);
  EXPECT_EQ(runs.find(8, kGranule, 1), waits.get());
  EXPECT_EQ(runs.find(8, kGranule, 0), other.get());
  runs.remove(other.get());
  EXPECT_EQ(runs.find(8, kGranule, 0), behind.get()) << "of the same class";
}

TEST(FreeRuns, ASearchEndsSoonOnceARunIsKnown) {
  FreeRuns runs;
  auto known = make_run(100'000 * kGranule, 8), first = make_run(64 * kGranule, 40, 1),
       last = make_run(200 * kGranule, 40);
  for (Span *run : {known.get(), first.get(), last.get()}) runs.insert(run);
  EXPECT_EQ(runs.find(8, kGranule, 0), last.get());
  runs.remove(last.get());
  std::vector<std::unique_ptr<Span>> between;
  for (uint64_t i = 0; i < 1000; ++i) {
    between.push_back(make_run((300 + i * 64) * kGranule, 40, 1));
    runs.insert(between.back().get());
  }
  runs.insert(last.get());
  EXPECT_EQ(runs.find(8, kGranule, 0), known.get()) << "a thousand runs wait for another stream";
  EXPECT_EQ(runs.find(9, kGranule, 0), last.get()) << "the only one is found";
  for (const auto &run : between) runs.remove(run.get());
  for (Span *run : {known.get(), first.get(), last.get()}) runs.remove(run);
}

TEST(FreeRuns, TheLargestSizeHasItsPlace) {
  FreeRuns runs;
  auto run = make_run(0, kMaxSize / kGranule);
  runs.insert(run.get());
  EXPECT_EQ(runs.find(1, kGranule, 0), run.get());
  EXPECT_EQ(runs.find(kMaxSize / kGranule, kGranule, 0), run.get());
  runs.remove(run.get());
  EXPECT_EQ(runs.find(1, kGranule, 0), nullptr);
}

}  // namespace
}  // namespace gmm
