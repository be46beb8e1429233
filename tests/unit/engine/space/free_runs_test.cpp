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

// Within a class the best is found (bins are searched whole here: fewer runs than the search's bound).
TEST(FreeRuns, BestFitAgainstANaiveModel) {
  std::mt19937 random(11);
  FreeRuns runs;
  std::vector<std::unique_ptr<Span>> all;
  for (int step = 0; step < 20000; ++step) {
    if (all.size() < 40 && random() % 2 == 0) {
      const uint64_t count = 1 + random() % (uint64_t{1} << (random() % 12));
      all.push_back(make_run((static_cast<uint64_t>(step) + 1) << 40 | (random() % 200) * kGranule, count,
                             random() % 3 == 0 ? uint64_t{1} << random() % 3 : 0));
      runs.insert(all.back().get());
      EXPECT_TRUE(all.back()->listed);
    } else if (!all.empty()) {
      const uint64_t count = 1 + random() % 1000;
      const uint64_t alignment = kGranule << (random() % 4 == 0 ? random() % 8 : 0);
      const uint64_t allowed = random() % 8;
      uint64_t best = 0;
      for (const auto &run : all)
        if (fits(*run, count, alignment, allowed) && (best == 0 || run->bytes() < best)) best = run->bytes();
      Span *found = runs.best_fit(count, alignment, allowed);
      ASSERT_EQ(found != nullptr, best != 0);
      size_t gone = random() % all.size();
      if (found != nullptr) {
        ASSERT_TRUE(fits(*found, count, alignment, allowed));
        ASSERT_EQ(found->bytes(), best);
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

TEST(FreeRuns, TheLargestSizeHasItsPlace) {
  FreeRuns runs;
  auto run = make_run(0, kMaxSize / kGranule);
  runs.insert(run.get());
  EXPECT_EQ(runs.best_fit(1, kGranule, 0), run.get());
  EXPECT_EQ(runs.best_fit(kMaxSize / kGranule, kGranule, 0), run.get());
  runs.remove(run.get());
  EXPECT_EQ(runs.best_fit(1, kGranule, 0), nullptr);
}

}  // namespace
}  // namespace gmm
