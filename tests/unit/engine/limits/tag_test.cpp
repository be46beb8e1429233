// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/tag.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace gmm {
namespace {

std::string numbered(uint32_t number) {
  std::string name = std::to_string(number);
  name.push_back('t');
  return name;
}

class TagTest : public testing::Test {
 protected:
  TagTest() { EXPECT_TRUE(tags.init().ok()); }
  TagTable tags{HostAllocator()};
};

TEST_F(TagTest, NamesGiveNumbers) {
  gmm_tag a = 0, b = 0, found = 0;
  ASSERT_TRUE(tags.create("weights", nullptr, &a).ok());
  ASSERT_TRUE(tags.create("cache", nullptr, &b).ok());
  EXPECT_NE(a, b);
  ASSERT_TRUE(tags.create("weights", nullptr, &found).ok());
  EXPECT_EQ(found, a);
  ASSERT_TRUE(tags.find("cache", &found).ok());
  EXPECT_EQ(found, b);
  ASSERT_TRUE(tags.find("default", &found).ok());
  EXPECT_EQ(found, GMM_TAG_DEFAULT);
  EXPECT_EQ(tags.find("none", &found).code(), GMM_ERROR_INVALID_TAG);
  EXPECT_EQ(tags.get(99), nullptr);
  EXPECT_EQ(tags.get(~0u), nullptr);
  EXPECT_EQ(tags.get(0), nullptr);
}

TEST_F(TagTest, BadNamesAndOtherMeaningsAreRefused) {
  gmm_tag tag = 0;
  EXPECT_EQ(tags.create("", nullptr, &tag).code(), GMM_ERROR_INVALID_VALUE);
  EXPECT_EQ(tags.create(std::string(64, 'n').c_str(), nullptr, &tag).code(), GMM_ERROR_INVALID_VALUE);
  EXPECT_TRUE(tags.create(std::string(63, 'n').c_str(), nullptr, &tag).ok());
  EXPECT_EQ(std::string(tags.get(tag)->name), std::string(63, 'n'));
  gmm_tag_desc desc = {};
  desc.contents = GMM_CONTENTS_HOST;
  desc.priority = 3;
  ASSERT_TRUE(tags.create("kept", &desc, &tag).ok());
  EXPECT_EQ(tags.get(tag)->priority, 3);
  EXPECT_TRUE(tags.create("kept", &desc, &tag).ok());
  desc.priority = 4;
  EXPECT_EQ(tags.create("kept", &desc, &tag).code(), GMM_ERROR_INVALID_VALUE);
  desc.contents = GMM_CONTENTS_FILE + 1;
  EXPECT_EQ(tags.create("worse", &desc, &tag).code(), GMM_ERROR_INVALID_VALUE);
}

TEST_F(TagTest, ThereIsALastTag) {
  gmm_tag tag = 0;
  uint32_t made = 1;
  while (tags.create(numbered(made).c_str(), nullptr, &tag).ok()) ASSERT_LT(++made, 5000u);
  EXPECT_EQ(made, TagTable::kMaxTags - 1);
  EXPECT_NE(tags.get(tag), nullptr);
  EXPECT_EQ(tags.count(), made);
}

TEST_F(TagTest, PushAndPopArePerThreadAndPerContext) {
  TagTable other{HostAllocator()};
  ASSERT_TRUE(other.init().ok());
  gmm_tag a = 0, b = 0, c = 0;
  ASSERT_TRUE(tags.create("a", nullptr, &a).ok());
  ASSERT_TRUE(tags.create("b", nullptr, &b).ok());
  ASSERT_TRUE(other.create("c", nullptr, &c).ok());
  EXPECT_EQ(tags.current(), GMM_TAG_DEFAULT);
  ASSERT_TRUE(tags.push(a).ok());
  ASSERT_TRUE(other.push(c).ok());
  ASSERT_TRUE(tags.push(b).ok());
  EXPECT_EQ(tags.current(), b);
  EXPECT_EQ(other.current(), c);
  std::thread([&] {
    EXPECT_EQ(tags.current(), GMM_TAG_DEFAULT);
    EXPECT_EQ(tags.pop().code(), GMM_ERROR_UNBALANCED);
    ASSERT_TRUE(tags.set_process_default(a).ok());
    EXPECT_EQ(tags.current(), a);
  }).join();
  ASSERT_TRUE(tags.pop().ok());
  EXPECT_EQ(tags.current(), a);
  EXPECT_EQ(other.current(), c);
  ASSERT_TRUE(tags.pop().ok());
  EXPECT_EQ(tags.current(), a) << "the process's default";
  EXPECT_EQ(tags.pop().code(), GMM_ERROR_UNBALANCED);
  ASSERT_TRUE(other.pop().ok());
  EXPECT_EQ(tags.push(77).code(), GMM_ERROR_INVALID_TAG);
  EXPECT_EQ(tags.set_process_default(77).code(), GMM_ERROR_INVALID_TAG);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(tags.push(a).ok());
  EXPECT_EQ(tags.push(a).code(), GMM_ERROR_UNBALANCED);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(tags.pop().ok());
}

// What a thread pushed on contexts that ended takes no place, and what it pushed on the others stays.
TEST_F(TagTest, TagsOfEndedContextsTakeNoPlace) {
  gmm_tag a = 0;
  ASSERT_TRUE(tags.create("a", nullptr, &a).ok());
  for (int round = 0; round < 200; ++round) {
    TagTable other{HostAllocator()};
    ASSERT_TRUE(other.init().ok());
    ASSERT_TRUE(other.push(GMM_TAG_DEFAULT).ok()) << "round " << round << ": " << last_message();
    if (round == 20) {
      ASSERT_TRUE(tags.push(a).ok());
    }
    EXPECT_EQ(tags.current(), round < 20 ? GMM_TAG_DEFAULT : a);
  }
  for (int i = 0; i < 63; ++i) ASSERT_TRUE(tags.push(GMM_TAG_DEFAULT).ok()) << i;
  EXPECT_EQ(tags.push(a).code(), GMM_ERROR_UNBALANCED);
  for (int i = 0; i < 63; ++i) ASSERT_TRUE(tags.pop().ok());
  EXPECT_EQ(tags.current(), a);
  ASSERT_TRUE(tags.pop().ok());
  EXPECT_EQ(tags.pop().code(), GMM_ERROR_UNBALANCED);
}

TEST_F(TagTest, ADefaultSetAfterAPushServesTheOthers) {
  gmm_tag a = 0, b = 0;
  ASSERT_TRUE(tags.create("a", nullptr, &a).ok());
  ASSERT_TRUE(tags.create("b", nullptr, &b).ok());
  ASSERT_TRUE(tags.set_process_default(a).ok());
  EXPECT_EQ(tags.current(), a);
  ASSERT_TRUE(tags.push(GMM_TAG_DEFAULT).ok());
  ASSERT_TRUE(tags.set_process_default(b).ok());
  EXPECT_EQ(tags.current(), GMM_TAG_DEFAULT);
  std::thread([&] { EXPECT_EQ(tags.current(), b); }).join();
  ASSERT_TRUE(tags.pop().ok());
  EXPECT_EQ(tags.current(), b);
}

TEST_F(TagTest, ThreadsThatMakeOneNameGetOneTag) {
  std::vector<std::thread> threads;
  std::vector<std::vector<gmm_tag>> got(4);
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        gmm_tag tag = 0;
        ASSERT_TRUE(tags.create(numbered(i).c_str(), nullptr, &tag).ok());
        got[t].push_back(tag);
      }
    });
  for (std::thread &thread : threads) thread.join();
  for (size_t t = 1; t < 4; ++t) EXPECT_EQ(got[t], got[0]);
  EXPECT_EQ(tags.count(), 201u);
}

}  // namespace
}  // namespace gmm
