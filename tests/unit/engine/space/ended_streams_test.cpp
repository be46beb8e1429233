// SPDX-License-Identifier: Apache-2.0
#include "engine/space/ended_streams.h"

#include <gtest/gtest.h>

namespace gmm {
namespace {

gmm_stream stream_at(uint64_t number) { return reinterpret_cast<gmm_stream>(0x6310000243c0 + number * 0x190); }

// Memory that was freed on them may not have been looked at yet.
TEST(EndedStreamsTest, TheNewestAreKnownHoweverManyEnd) {
  constexpr uint64_t kStreams = 5000, kNewest = 20;
  EndedStreams ended;
  for (uint64_t i = 0; i < kStreams; ++i) {
    ended.add(stream_at(i));
    for (uint64_t j = i < kNewest ? 0 : i - kNewest; j <= i; ++j) ASSERT_TRUE(ended.contains(stream_at(j))) << i - j;
  }
  ended.remove(stream_at(kStreams - 1));
  EXPECT_FALSE(ended.contains(stream_at(kStreams - 1)));
  EXPECT_FALSE(ended.contains(nullptr));
}

}  // namespace
}  // namespace gmm
