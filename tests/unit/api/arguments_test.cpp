// SPDX-License-Identifier: Apache-2.0
// A struct of three releases: the library serves programs of each. tests/api/bad_input.def calls each function with a
// struct of a wrong size.
#include "api/arguments.h"

#include <gtest/gtest.h>

namespace gmm {

// The fields of three releases: `bytes` came with this one, `later` comes with the next. struct_size says how many
// there are.
struct ThisRelease {
  uint32_t struct_size = sizeof(ThisRelease), flags = 0;
  uint64_t bytes = 0;
};
struct AnyRelease : ThisRelease {
  uint64_t later = 0;
};
constexpr uint32_t kFirst = 8, kThis = sizeof(ThisRelease), kLater = sizeof(AnyRelease);
template <>
struct GrowingStructOf<ThisRelease> {
  static constexpr GrowingStruct kRow = {"ThisRelease", kFirst, kThis};
};

namespace {

AnyRelease of_size(uint32_t size, uint32_t flags, uint64_t bytes, uint64_t later) {
  AnyRelease made;
  made.struct_size = size;
  made.flags = flags;
  made.bytes = bytes;
  made.later = later;
  return made;
}

TEST(ArgumentsTest, DescriptorsOfEachReleaseAreRead) {
  const struct {
    AnyRelease given;
    gmm_result result;
    uint64_t bytes;  // that are read
    bool has_first_only;
  } cases[] = {{of_size(kFirst, 7, 77, 77), GMM_OK, 0, true},  // the fields behind its end are others' memory
               {of_size(kThis, 7, 0, 77), GMM_OK, 0, true},
               {of_size(kThis, 7, 9, 77), GMM_OK, 9, false},
               {of_size(kLater, 7, 0, 0), GMM_OK, 0, true},
               {of_size(kLater, 7, 9, 0), GMM_OK, 9, false},
               {of_size(kLater, 7, 0, 1), GMM_ERROR_NOT_SUPPORTED, 0, false}};
  for (const auto &one : cases) {
    SCOPED_TRACE(&one - cases);
    ThisRelease read;
    EXPECT_EQ(read_descriptor<ThisRelease>(&one.given, &read).code(), one.result);
    EXPECT_EQ(has_first_fields_only<ThisRelease>(one.given), one.has_first_only);
    if (one.result != GMM_OK) continue;
    EXPECT_EQ(read.struct_size, kThis);
    EXPECT_EQ(read.flags, 7u);
    EXPECT_EQ(read.bytes, one.bytes);
  }
  EXPECT_NE(std::strstr(gmm_last_error_message(), "Bytes 16 to 23 of ThisRelease are newer"), nullptr);
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
  std::memset(bytes, 0, sizeof bytes);
  asked->struct_size = GrowingStruct::kMaximum;
  ThisRelease read;
  EXPECT_TRUE(read_descriptor(asked, &read).ok());
  bytes[GrowingStruct::kMaximum - 1] = 1;
  EXPECT_EQ(read_descriptor(asked, &read).code(), GMM_ERROR_NOT_SUPPORTED);
}

TEST(ArgumentsTest, ACallbackAsksWhetherAFieldIsThere) {
  AnyRelease lent = of_size(kThis, 0, 0, 0);
  EXPECT_TRUE(GMM_HAS(&lent, ThisRelease, bytes));
  lent.struct_size = kThis - 1;
  EXPECT_FALSE(GMM_HAS(&lent, ThisRelease, bytes));
}

TEST(ArgumentsTest, OutputIsFilledAsFarAsItReaches) {
  ThisRelease value;
  value.flags = 3;
  value.bytes = 4;
  for (uint32_t size : {kFirst, kThis, kLater}) {
    AnyRelease out = of_size(size, 77, 77, 77);
    uint32_t known = 0;
    ASSERT_TRUE(check_output<ThisRelease>(&out, &known).ok());
    fill_output<ThisRelease>(value, known, &out);
    EXPECT_EQ(out.struct_size, size);
    EXPECT_EQ(out.flags, 3u);
    EXPECT_EQ(out.bytes, size == kFirst ? 77u : 4u);
    EXPECT_EQ(out.later, size == kLater ? 0u : 77u);
  }
}

}  // namespace
}  // namespace gmm
