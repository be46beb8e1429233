// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/ready_signal.h"

#include <gtest/gtest.h>

#include <thread>

namespace gmm {
namespace {

constexpr uintptr_t kBase = uintptr_t{3} << 40;
constexpr uint64_t kExtent = uint64_t{2} << 20;
const void *const kAddress = reinterpret_cast<void *>(kBase);

// Two extents, one behind the other.
struct Extents {
  explicit Extents(ExtentState first, ExtentState second) {
    EXPECT_TRUE(map.init() && map.prepare(kBase, 2 * kExtent));
    for (int i = 0; i < 2; ++i) {
      extents[i].base = kBase + static_cast<uint64_t>(i) * kExtent;
      extents[i].size = kExtent;
      extents[i].state = i == 0 ? first : second;
      map.set_extent(extents[i].base, kExtent, &extents[i]);
    }
  }
  PageMap map{HostAllocator()};
  Extent extents[2];
  ReadySignal ready;
};

TEST(ReadySignal, PromisesRestoredExtentsOfTheRangeOnly) {
  Extents test(ExtentState::kRestored, ExtentState::kRestored);
  EXPECT_EQ(test.ready.wait(test.map, kAddress, kExtent, 0).code(), GMM_OK);
  EXPECT_EQ(test.extents[0].state.load(), ExtentState::kPromised);
  EXPECT_EQ(test.extents[1].state.load(), ExtentState::kRestored);
}

TEST(ReadySignal, PromisesNothingWhileAnExtentIsPaused) {
  for (ExtentState paused : {ExtentState::kPaused, ExtentState::kUnmapped}) {
    Extents test(ExtentState::kRestored, paused);
    EXPECT_EQ(test.ready.wait(test.map, kAddress, 2 * kExtent, 0).code(), GMM_ERROR_NOT_READY);
    EXPECT_EQ(test.ready.wait(test.map, kAddress, 2 * kExtent, 2).code(), GMM_ERROR_NOT_READY);
    EXPECT_EQ(test.extents[0].state.load(), ExtentState::kRestored);
  }
}

TEST(ReadySignal, LeavesActiveExtentsAsTheyAre) {
  Extents test(ExtentState::kActive, ExtentState::kActive);
  EXPECT_EQ(test.ready.wait(test.map, kAddress, 2 * kExtent, 0).code(), GMM_OK);
  EXPECT_EQ(test.extents[0].state.load(), ExtentState::kActive);
}

TEST(ReadySignal, RefusesAnAddressWithoutAnExtent) {
  Extents test(ExtentState::kActive, ExtentState::kActive);
  EXPECT_EQ(test.ready.wait(test.map, kAddress, 2 * kExtent + 1, 0).code(), GMM_ERROR_UNKNOWN_POINTER);
}

TEST(ReadySignal, AnAnnouncementWakesAWaitingThread) {
  Extents test(ExtentState::kActive, ExtentState::kPaused);
  std::thread resume([&] { test.ready.announce(test.extents[1]); });
  EXPECT_EQ(test.ready.wait(test.map, kAddress, 2 * kExtent, 60000).code(), GMM_OK);
  resume.join();
  EXPECT_EQ(test.extents[1].state.load(), ExtentState::kPromised);
}

}  // namespace
}  // namespace gmm
