// SPDX-License-Identifier: Apache-2.0
#include "base/vector.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace gmm {
namespace {

TEST(Vector, RandomOperationsAgainstTheStandardOne) {
  Vector<uint64_t> vector;
  std::vector<uint64_t> model;
  std::mt19937 random(1);
  for (int step = 0; step < 20000; ++step) {
    const uint64_t value = random(), at = model.empty() ? 0 : random() % model.size();
    switch (random() % 6) {
      case 0:
      case 1:
        ASSERT_TRUE(vector.push_back(value));
        model.push_back(value);
        break;
      case 2:
        ASSERT_TRUE(vector.insert(at, value));
        model.insert(model.begin() + static_cast<long>(at), value);
        break;
      case 3:
        if (model.empty()) break;
        vector.erase(at);
        model.erase(model.begin() + static_cast<long>(at));
        break;
      case 4:
        if (model.empty()) break;
        vector.erase_unordered(at);
        model[at] = model.back();
        model.pop_back();
        break;
      default:
        if (model.empty()) break;
        ASSERT_EQ(vector.pop_back(), model.back());
        model.pop_back();
    }
    ASSERT_EQ(vector.size(), model.size());
    ASSERT_TRUE(std::equal(vector.begin(), vector.end(), model.begin()));
  }
}

TEST(Vector, AnElementOfItselfMayBeAdded) {
  Vector<uint64_t> vector;
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(vector.push_back(i));
  ASSERT_TRUE(vector.push_back(vector[3]));  // grows here
  EXPECT_EQ(vector.back(), 3u);
  for (uint64_t i = 9; i < 16; ++i) ASSERT_TRUE(vector.push_back(i));
  ASSERT_TRUE(vector.insert(0, vector[15]));
  EXPECT_EQ(vector[0], 15u);
}

TEST(Vector, WantOfMemoryLeavesTheContents) {
  int64_t left = 1;
  const HostAllocator allocator(
      [](void *user, uint64_t size, uint64_t) -> void * {
        return --*static_cast<int64_t *>(user) < 0 ? nullptr : std::malloc(size);
      },
      [](void *, void *memory, uint64_t) { std::free(memory); }, &left);
  Vector<int> vector(allocator);
  while (vector.push_back(7)) {
  }
  EXPECT_EQ(vector.size(), 8u);
  EXPECT_FALSE(vector.insert(0, 1));
  for (int value : vector) EXPECT_EQ(value, 7);
}

TEST(Vector, MovesAndSwaps) {
  Vector<int> a, b;
  ASSERT_TRUE(a.push_back(1));
  Vector<int> c(static_cast<Vector<int> &&>(a));
  EXPECT_EQ(a.size(), 0u);
  b.swap(c);
  ASSERT_EQ(b.size(), 1u);
  EXPECT_EQ(b[0], 1);
}

}  // namespace
}  // namespace gmm
