// SPDX-License-Identifier: Apache-2.0
// A struct of three releases: the library serves programs of each. tests/api/bad_input.def calls each function with a
// struct of a wrong size.
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

TEST(ArgumentsTest, SizesOfNoReleaseAreRefusedAndNothingIsWritten) {
  alignas(ThisRelease) unsigned char bytes[GrowingStruct::kMaximum + 64], before[sizeof bytes];
  const auto asked = reinterpret_cast<ThisRelease *>(bytes);
  for (uint32_t size : {0u, 7u, 9u, 15u, 17u, 4095u, 4097u, 4104u, 0x80000000u, 0xfffffff8u, 0xffffffffu}) {
    std::memset(bytes, 0xa5, sizeof bytes);
    std::memcpy(bytes, &size, sizeof size);
    std::memcpy(before, bytes, sizeof bytes);
    ThisRelease read;
    uint32_t known = 0;
    EXPECT_EQ(read_descriptor(asked, &read).code(), GMM_ERROR_INVALID_DESCRIPTOR) << size;
    EXPECT_EQ(check_output(asked, &known).code(), GMM_ERROR_INVALID_DESCRIPTOR) << size;
    EXPECT_NE(std::strstr(gmm_last_error_message(), "ThisRelease"), nullptr);
    EXPECT_FALSE(has_first_fields_only(*asked)) << size;
    EXPECT_EQ(std::memcmp(bytes, before, sizeof bytes), 0) << size;
  }
}

TEST(ArgumentsTest, TheLargestStructOfALaterReleaseIsServed) {
  alignas(ThisRelease) unsigned char bytes[GrowingStruct::kMaximum] = {};
  const uint32_t size = sizeof bytes;
  std::memcpy(bytes, &size, sizeof size);
  ThisRelease read;
  EXPECT_TRUE(read_descriptor(reinterpret_cast<ThisRelease *>(bytes), &read).ok());
  bytes[sizeof bytes - 1] = 1;
  EXPECT_EQ(read_descriptor(reinterpret_cast<ThisRelease *>(bytes), &read).code(), GMM_ERROR_NOT_SUPPORTED);
}

TEST(ArgumentsTest, ACallbackAsksWhetherAFieldIsThere) {
  LaterRelease lent;
  lent.struct_size = sizeof(ThisRelease);
  EXPECT_TRUE(GMM_HAS(&lent, LaterRelease, bytes));
  EXPECT_FALSE(GMM_HAS(&lent, LaterRelease, later));
  lent.struct_size = sizeof(LaterRelease) - 1;
  EXPECT_FALSE(GMM_HAS(&lent, LaterRelease, later));
  lent.struct_size = sizeof(LaterRelease);
  EXPECT_TRUE(GMM_HAS(&lent, LaterRelease, later));
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
