// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/block_names.h"

#include <map>
#include <random>
#include <string>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

constexpr uint64_t kBlocks = 400;

// A host allocator whose calls from the k-th on fail.
struct Limited {
  int64_t left = INT64_MAX;
  static void *allocate(void *self, uint64_t size, uint64_t alignment) {
    return static_cast<Limited *>(self)->left-- > 0 ? HostAllocator().allocate(size, alignment) : nullptr;
  }
  static void deallocate(void *, void *memory, uint64_t size) { HostAllocator().deallocate(memory, size); }
};

class BlockNamesTest : public testing::Test {
 protected:
  // Blocks of a slab lie close together: their addresses must not crowd in the table.
  CacheEntry block(uint64_t i) {
    return CacheEntry{reinterpret_cast<void *>((uintptr_t{1} << 40) + i * 256), &slots[i]};
  }
  const char *of(uint64_t i) { return names.of(block(i).block); }

  Limited limited;
  BlockNames names{HostAllocator(Limited::allocate, Limited::deallocate, &limited)};
  std::atomic<uint64_t> slots[kBlocks] = {};
};

TEST_F(BlockNamesTest, ANamedBlockIsMarkedSoThatItsFreeLooks) {
  slots[3] = 700;
  EXPECT_STREQ(of(3), "");
  ASSERT_TRUE(names.set(block(3), "three").ok());
  EXPECT_EQ(slots[3].load(), 700 | kUsedElsewhere);
  EXPECT_STREQ(of(3), "three");
  EXPECT_STREQ(of(4), "");
  ASSERT_TRUE(names.set(block(3), "3").ok());
  EXPECT_STREQ(of(3), "3");
  EXPECT_EQ(names.count(), 1u);
  ASSERT_TRUE(names.set(block(3), nullptr).ok());
  EXPECT_STREQ(of(3), "");
  EXPECT_EQ(names.count(), 0u);
  names.forget(block(3).block);
}

TEST_F(BlockNamesTest, ManyNamesComeAndGoInAnyOrder) {
  std::map<uint64_t, std::string> expected;
  std::mt19937 random(1);
  for (unsigned round = 0; round < 20000; ++round) {
    const uint64_t i = random() % kBlocks;
    if (random() % 5 < 2) {
      names.forget(block(i).block);
      expected.erase(i);
    } else {
      expected[i] = std::string(1 + random() % 63, static_cast<char>('a' + random() % 26));
      ASSERT_TRUE(names.set(block(i), expected[i].c_str()).ok());
    }
    ASSERT_EQ(names.count(), expected.size());
    if (round % 100 != 0) continue;
    for (uint64_t k = 0; k < kBlocks; ++k) ASSERT_EQ(of(k), expected.count(k) != 0 ? expected[k] : "");
  }
  names.clear();
  EXPECT_EQ(names.count(), 0u);
  for (uint64_t k = 0; k < kBlocks; ++k) ASSERT_STREQ(of(k), "");
  ASSERT_TRUE(names.set(block(0), "anew").ok());
  EXPECT_STREQ(of(0), "anew");
}

TEST_F(BlockNamesTest, WithoutHostMemoryTheNamesAreAsBefore) {
  uint64_t failures = 0;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t before = slots[i].load();
    for (int64_t allowed = 0;; ++allowed) {
      limited.left = allowed;
      const Status status = names.set(block(i), std::to_string(i).c_str());
      limited.left = INT64_MAX;
      if (status.ok()) break;
      ++failures;
      EXPECT_EQ(status.code(), GMM_ERROR_OUT_OF_HOST_MEMORY);
      EXPECT_EQ(slots[i].load(), before);
      EXPECT_EQ(names.count(), i);
      for (uint64_t k = 0; k < kBlocks; ++k) ASSERT_EQ(of(k), k < i ? std::to_string(k) : "");
    }
  }
  EXPECT_GE(failures, 8u);
}

}  // namespace
}  // namespace gmm::test
