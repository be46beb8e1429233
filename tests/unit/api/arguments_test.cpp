// SPDX-License-Identifier: Apache-2.0
// Structs of two releases of one interface. tests/abi/struct_sizes.c has every struct of this release; here one grows.
#include "api/arguments.h"

#include <gtest/gtest.h>

namespace gmm {

struct FirstRelease {
  uint32_t struct_size = sizeof(FirstRelease), flags = 0;
};
struct ThisRelease {
  uint32_t struct_size = sizeof(ThisRelease), flags = 0;
  uint64_t bytes = 0;
};
struct LaterRelease {
  uint32_t struct_size = sizeof(LaterRelease), flags = 0;
  uint64_t bytes = 0, later = 0;
};
template <>
struct GrowingStructOf<ThisRelease> {
  static constexpr GrowingStruct kRow = {"ThisRelease", sizeof(FirstRelease), sizeof(ThisRelease)};
};

namespace {

template <typename T>
ThisRelease *as_this(T *other) {
  return reinterpret_cast<ThisRelease *>(other);
}

TEST(ArgumentsTest, DescriptorOfAnOlderReleaseHasDefaults) {
  FirstRelease older;
  older.flags = 7;
  ThisRelease read;
  ASSERT_TRUE(read_descriptor<ThisRelease>(as_this(&older), &read).ok());
  EXPECT_EQ(read.struct_size, sizeof(ThisRelease));
  EXPECT_EQ(read.flags, 7u);
  EXPECT_EQ(read.bytes, 0u);
  EXPECT_TRUE(has_first_fields_only(*as_this(&older)));
}

TEST(ArgumentsTest, DescriptorOfALaterReleaseIsReadUnlessItUsesALaterField) {
  LaterRelease later;
  later.bytes = 9;
  ThisRelease read;
  ASSERT_TRUE(read_descriptor<ThisRelease>(as_this(&later), &read).ok());
  EXPECT_EQ(read.bytes, 9u);
  EXPECT_FALSE(has_first_fields_only(*as_this(&later)));
  later.bytes = 0;
  EXPECT_TRUE(has_first_fields_only(*as_this(&later)));
  later.later = 1;
  EXPECT_EQ(read_descriptor<ThisRelease>(as_this(&later), &read).code(), GMM_ERROR_NOT_SUPPORTED);
  EXPECT_NE(std::strstr(gmm_last_error_message(), "Bytes 16 to 23 of ThisRelease are newer"), nullptr);
  EXPECT_FALSE(has_first_fields_only(*as_this(&later)));
}

TEST(ArgumentsTest, FieldsOfThisReleaseAreKnown) {
  ThisRelease in, read;
  in.bytes = 5;
  ASSERT_TRUE(read_descriptor(&in, &read).ok());
  EXPECT_EQ(read.bytes, 5u);
  EXPECT_FALSE(has_first_fields_only(in));
}

TEST(ArgumentsTest, OutputIsFilledAsFarAsItReaches) {
  ThisRelease value;
  value.flags = 3;
  value.bytes = 4;
  uint32_t size = 0;
  LaterRelease later;
  later.later = 77;
  ASSERT_TRUE(check_output(as_this(&later), &size).ok());
  fill_output(value, size, as_this(&later));
  EXPECT_EQ(later.struct_size, sizeof later);
  EXPECT_EQ(later.bytes, 4u);
  EXPECT_EQ(later.later, 0u);

  FirstRelease older[2];
  older[1].flags = 77;
  ASSERT_TRUE(check_output(as_this(older), &size).ok());
  fill_output(value, size, as_this(older));
  EXPECT_EQ(older[0].struct_size, sizeof older[0]);
  EXPECT_EQ(older[0].flags, 3u);
  EXPECT_EQ(older[1].struct_size, sizeof older[1]);
  EXPECT_EQ(older[1].flags, 77u);
}

}  // namespace
}  // namespace gmm
