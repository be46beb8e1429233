// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/pageable.h"

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class PageableTest : public testing::Test {
 public:
  Engine engine;
  BackupPageable pageable{engine.core};
};

TEST_F(PageableTest, AllocatesUpToTheLimit) {
  uint64_t first = 0, second = 0, third = 0;
  ASSERT_TRUE(pageable.allocate(4 * kMiB, 0, 6 * kMiB, &first));
  EXPECT_FALSE(pageable.allocate(4 * kMiB, 0, 6 * kMiB, &second));
  ASSERT_TRUE(pageable.allocate(2 * kMiB, first + 4 * kMiB, 6 * kMiB, &second));
  EXPECT_EQ(second, first + 4 * kMiB) << "neighbours lie together";
  EXPECT_EQ(pageable.bytes(), 6 * kMiB);
  EXPECT_FALSE(pageable.allocate(1, 0, 6 * kMiB, &third));
  EXPECT_FALSE(pageable.allocate(1, 0, 0, &third)) << "a lower limit frees nothing and allows nothing";
  pageable.free(first, 4 * kMiB);
  EXPECT_TRUE(pageable.allocate(4 * kMiB, 0, 6 * kMiB, &third));
  EXPECT_EQ(third, first);
}

TEST_F(PageableTest, FreedPagesGoBackToTheSystem) {
  uint64_t offset = 0;
  ASSERT_TRUE(pageable.allocate(4 * kMiB, 0, 64 * kMiB, &offset));
  std::memset(pageable.address(offset), 0x5a, 4 * kMiB);
  pageable.free(offset, 4 * kMiB);
  ASSERT_TRUE(pageable.allocate(4 * kMiB, offset, 64 * kMiB, &offset));
  for (uint64_t i = 0; i < 4 * kMiB; i += 4096) ASSERT_EQ(pageable.address(offset)[i], 0) << i;
}

TEST_F(PageableTest, GrowsByMoreThanAStep) {
  uint64_t first = 0, second = 0;
  ASSERT_TRUE(pageable.allocate(100 * kMiB, 0, 1024 * kMiB, &first));
  ASSERT_TRUE(pageable.allocate(60 * kMiB, 0, 1024 * kMiB, &second));
  *pageable.address(first + 100 * kMiB - 1) = 1;
  *pageable.address(second + 60 * kMiB - 1) = 1;
  pageable.clear();
  EXPECT_EQ(pageable.bytes(), 0u);
  ASSERT_TRUE(pageable.allocate(kMiB, 0, 1024 * kMiB, &first));
}

TEST_F(PageableTest, AbandonedMemoryStays) {
  uint64_t offset = 0;
  ASSERT_TRUE(pageable.allocate(kMiB, 0, 64 * kMiB, &offset));
  char *memory = pageable.address(offset);
  pageable.abandon();
  pageable.clear();
  std::memset(memory, 1, kMiB);  // as a late copy of the device would
}

}  // namespace
}  // namespace gmm::test
