// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "base/name.h"

namespace gmm {
namespace {

bool is_utf8(const std::string &text) { return utf8_prefix(text.data(), text.size()) == text.size(); }

// The bytes of a number, without a look at whether it is a character.
std::string encoded(uint32_t number, unsigned size) {
  if (size == 1) return std::string(1, static_cast<char>(number));
  std::string text;
  for (unsigned i = size; i-- > 1; number >>= 6) text.insert(text.begin(), static_cast<char>(0x80 | (number & 0x3f)));
  const unsigned mark = 0xf00u >> size & 0xff;
  text.insert(text.begin(), static_cast<char>(mark | number));
  return text;
}

TEST(Utf8, TakesEveryCharacter) {
  for (uint32_t number = 0; number <= 0x10ffff; ++number) {
    const unsigned size = number < 0x80 ? 1 : number < 0x800 ? 2 : number < 0x10000 ? 3 : 4;
    const bool is_surrogate = number >= 0xd800 && number <= 0xdfff;
    ASSERT_EQ(is_utf8(encoded(number, size)), !is_surrogate) << number;
  }
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"));
}

TEST(Utf8, RefusesOverlongFormsAndNumbersThatAreTooLarge) {
  for (uint32_t number : {0u, 0x2fu, 0x7fu}) EXPECT_FALSE(is_utf8(encoded(number, 2))) << number;
  for (uint32_t number : {0u, 0x7fu, 0x7ffu}) EXPECT_FALSE(is_utf8(encoded(number, 3))) << number;
  for (uint32_t number : {0u, 0x7ffu, 0xffffu, 0x110000u, 0x1fffffu}) EXPECT_FALSE(is_utf8(encoded(number, 4)));
  for (int lead : {0x80, 0xbf, 0xc0, 0xc1, 0xf5, 0xf8, 0xfe, 0xff})
    EXPECT_FALSE(is_utf8(std::string(1, static_cast<char>(lead)) + "\x80\x80\x80")) << lead;
}

TEST(Utf8, TellsWhereTheTextStopsBeingText) {
  const std::string euro = "\xe2\x82\xac";
  for (uint64_t length = 0; length < 3; ++length) EXPECT_EQ(utf8_prefix(("ab" + euro).data(), 2 + length), 2u);
  EXPECT_EQ(utf8_prefix(("ab" + euro).data(), 5), 5u);
  EXPECT_EQ(utf8_prefix("ab\xe2"
                        "c",
                        4),
            2u);
  EXPECT_EQ(utf8_prefix("\xff", 1), 0u);
}

}  // namespace
}  // namespace gmm
