// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "heap_test_support.h"

namespace gmm::test {
namespace {

class TraceTest : public testing::Test {
 protected:
  TraceTest() {
    char name[] = "/tmp/gmm-trace-XXXXXX";
    close(mkstemp(name));
    path = name;
  }
  ~TraceTest() override { unlink(path.c_str()); }
  std::vector<std::string> lines() {
    std::ifstream file(path);
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  static void *block(uint64_t number) { return reinterpret_cast<void *>(number * 4096); }
  Engine engine;
  Trace trace{engine.core};
  std::string path;
};

TEST_F(TraceTest, LinesNameBlocksByNumber) {
  ASSERT_TRUE(trace.begin(path.c_str()).ok());
  EXPECT_TRUE(trace.running());
  EXPECT_EQ(engine.core.gate->word.load(), kGateWatched);
  EXPECT_EQ(trace.begin(path.c_str()).code(), GMM_ERROR_BUSY);
  trace.allocated(block(1), 100, GMM_STREAM_DEFAULT);
  trace.allocated(block(2), 200, reinterpret_cast<gmm_stream>(uintptr_t{9}));
  trace.freeing(block(1), GMM_STREAM_DEFAULT);
  trace.freeing(block(3), GMM_STREAM_DEFAULT);  // from before the trace
  trace.allocated(block(1), 300, GMM_STREAM_DEFAULT);
  trace.freeing(block(1), GMM_STREAM_DEFAULT);
  ASSERT_TRUE(trace.end().ok());
  EXPECT_FALSE(trace.running());
  EXPECT_EQ(engine.core.gate->word.load(), kGateOpen);
  EXPECT_EQ(trace.end().code(), GMM_ERROR_UNBALANCED);
  const std::string none = std::to_string(reinterpret_cast<uintptr_t>(GMM_STREAM_DEFAULT));
  EXPECT_EQ(lines(), (std::vector<std::string>{"a 0 100 " + none, "a 1 200 9", "f 0 " + none, "a 2 300 " + none,
                                               "f 2 " + none}));
}

TEST_F(TraceTest, ThousandsOfLiveBlocksKeepTheirNumbers) {
  ASSERT_TRUE(trace.begin(path.c_str()).ok());
  std::mt19937 random(8);
  std::map<uint64_t, uint64_t> live;  // block, number
  std::vector<std::string> expected;
  uint64_t next = 0;
  for (int step = 0; step < 30000; ++step) {
    const uint64_t number = 1 + random() % 6000;
    auto known = live.find(number);
    if (known == live.end()) {
      trace.allocated(block(number), number, nullptr);
      expected.push_back("a " + std::to_string(next) + " " + std::to_string(number) + " 0");
      live[number] = next++;
    } else {
      trace.freeing(block(number), nullptr);
      expected.push_back("f " + std::to_string(known->second) + " 0");
      live.erase(known);
    }
  }
  ASSERT_TRUE(trace.end().ok());
  EXPECT_EQ(lines(), expected);
  // A second trace starts at 0 and knows nothing of the first.
  ASSERT_TRUE(trace.begin(path.c_str()).ok());
  trace.freeing(block(live.begin()->first), nullptr);
  trace.allocated(block(1), 1, nullptr);
  ASSERT_TRUE(trace.end().ok());
  EXPECT_EQ(lines(), std::vector<std::string>{"a 0 1 0"});
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsReported) {
  EXPECT_EQ(trace.begin("/nowhere/at/all").code(), GMM_ERROR_IO);
  EXPECT_FALSE(trace.running());
  ASSERT_TRUE(trace.begin("/dev/full").ok());
  for (uint64_t i = 1; i < 1000; ++i) trace.allocated(block(i), i, nullptr);
  EXPECT_EQ(trace.end().code(), GMM_ERROR_IO);
  EXPECT_EQ(engine.core.gate->word.load(), kGateOpen);
}

}  // namespace
}  // namespace gmm::test
