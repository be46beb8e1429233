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

uint32_t count_of(TagTable &tags) {
  uint32_t count = 0;
  tags.list(nullptr, 0, &count);
  return count;
}

TEST_F(TagTest, ThereIsNoLastTag) {
  constexpr uint32_t kTags = 5 * TagTable::kNear;
  for (uint32_t i = 2; i <= kTags; ++i) {
    gmm_tag tag = 0;
    ASSERT_TRUE(tags.create(numbered(i).c_str(), nullptr, &tag).ok());
    ASSERT_EQ(tag, i);
  }
  for (uint32_t i = 2; i <= kTags; ++i) {
    gmm_tag tag = 0;
    ASSERT_TRUE(tags.find(numbered(i).c_str(), &tag).ok());
    ASSERT_EQ(tag, i);
    ASSERT_EQ(tags.get(i)->number, i);
  }
  EXPECT_EQ(tags.get(kTags + 1), nullptr);
  EXPECT_EQ(tags.get(TagTable::kNear * 8), nullptr);
  EXPECT_EQ(count_of(tags), kTags);
}

// A search must not stop where a destroyed name was. Names share slots by the hundred here.
TEST_F(TagTest, TheOthersAreFoundAfterSomeAreDestroyed) {
  constexpr uint32_t kTags = 6000;
  for (uint32_t i = 2; i <= kTags; ++i) {
    gmm_tag tag = 0;
    ASSERT_TRUE(tags.create(numbered(i).c_str(), nullptr, &tag).ok());
  }
  for (uint32_t i = 2; i <= kTags; i += 2) {
    ASSERT_TRUE(tags.begin_end(*tags.get(i)).ok());
    tags.end(*tags.get(i));
  }
  for (uint32_t i = 2; i <= kTags; ++i) {
    gmm_tag tag = 0;
    ASSERT_EQ(tags.find(numbered(i).c_str(), &tag).code(), i % 2 == 0 ? GMM_ERROR_INVALID_TAG : GMM_OK) << i;
    ASSERT_EQ(tags.get(i) == nullptr, i % 2 == 0);
  }
  gmm_tag again = 0;
  ASSERT_TRUE(tags.create(numbered(2).c_str(), nullptr, &again).ok());
  EXPECT_EQ(again, kTags + 1) << "a number is not used again";
  std::vector<gmm_tag> listed(kTags);
  uint32_t count = 0;
  tags.list(listed.data(), kTags, &count);
  EXPECT_EQ(count, kTags / 2 + 1);
  EXPECT_EQ(listed[0], GMM_TAG_DEFAULT);
  EXPECT_EQ(listed[1], 3u);
  EXPECT_EQ(listed[count - 1], again);
}

TEST_F(TagTest, AUsedTagDoesNotEnd) {
  gmm_tag a = 0;
  ASSERT_TRUE(tags.create("a", nullptr, &a).ok());
  EXPECT_EQ(tags.begin_end(*tags.get(GMM_TAG_DEFAULT)).code(), GMM_ERROR_BUSY);
  ASSERT_TRUE(tags.push(a).ok());
  EXPECT_EQ(tags.begin_end(*tags.get(a)).code(), GMM_ERROR_BUSY);
  ASSERT_TRUE(tags.pop().ok());
  ASSERT_TRUE(tags.set_default(a).ok());
  EXPECT_EQ(tags.begin_end(*tags.get(a)).code(), GMM_ERROR_BUSY);
  ASSERT_TRUE(tags.set_default(GMM_TAG_DEFAULT).ok());
  // A thread that ends takes its pushes back.
  std::thread([&] { ASSERT_TRUE(tags.push(a).ok()); }).join();
  ASSERT_TRUE(tags.begin_end(*tags.get(a)).ok());
  EXPECT_EQ(tags.push(a).code(), GMM_ERROR_INVALID_TAG);
  EXPECT_EQ(tags.set_default(a).code(), GMM_ERROR_INVALID_TAG);
  tags.undo_end(*tags.get(a));
  ASSERT_TRUE(tags.push(a).ok());
  ASSERT_TRUE(tags.pop().ok());
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
    ASSERT_TRUE(tags.set_default(a).ok());
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
  EXPECT_EQ(tags.set_default(77).code(), GMM_ERROR_INVALID_TAG);
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
  ASSERT_TRUE(tags.set_default(a).ok());
  EXPECT_EQ(tags.current(), a);
  ASSERT_TRUE(tags.push(GMM_TAG_DEFAULT).ok());
  ASSERT_TRUE(tags.set_default(b).ok());
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
  EXPECT_EQ(count_of(tags), 201u);
}

}  // namespace
}  // namespace gmm
