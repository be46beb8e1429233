// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/capture.h"

#include <gtest/gtest.h>

namespace gmm::test {
namespace {

// Keeps what it shall call at the end of a graph.
class GraphBackend final : public Backend {
 public:
  GraphBackend() : Backend(HostAllocator(), Log(nullptr, nullptr)) {}
  Status at_end_of_graph(Device, void *graph, void (*fn)(void *), void *user) override {
    graph_ = graph;
    if (!refuses) {
      fn_ = fn;
      user_ = user;
      return Status();
    }
    fn(user);
    return fail(GMM_ERROR_DRIVER, "refused");
  }
  void end_graph() { fn_(user_); }
  bool refuses = false;
  void *graph_ = nullptr;

 private:
  void (*fn_)(void *) = nullptr;
  void *user_ = nullptr;
};

TEST(GraphLife, IsOverWhenTheDriverSaysSo) {
  GraphBackend backend;
  GraphLife *life = GraphLife::make();
  ASSERT_NE(life, nullptr);
  int graph = 0;
  const uint64_t ended = GraphLife::ended();
  ASSERT_TRUE(life->tie(backend, Device{0}, &graph).ok());
  EXPECT_EQ(backend.graph_, &graph);
  EXPECT_FALSE(life->over());
  EXPECT_EQ(GraphLife::ended(), ended);
  backend.end_graph();
  EXPECT_TRUE(life->over());
  EXPECT_EQ(GraphLife::ended(), ended + 1);
  life->release();
}

TEST(GraphLife, MayEndAfterItsOwner) {
  GraphBackend backend;
  GraphLife *life = GraphLife::make();
  ASSERT_NE(life, nullptr);
  ASSERT_TRUE(life->tie(backend, Device{0}, nullptr).ok());
  life->release();      // the context went
  backend.end_graph();  // an address sanitizer sees a mistake
}

TEST(GraphLife, ARefusedTieLeavesOneReference) {
  GraphBackend backend;
  backend.refuses = true;
  GraphLife *life = GraphLife::make();
  ASSERT_NE(life, nullptr);
  EXPECT_EQ(life->tie(backend, Device{0}, nullptr).code(), GMM_ERROR_DRIVER);
  EXPECT_TRUE(life->over());
  life->release();
}

}  // namespace
}  // namespace gmm::test
