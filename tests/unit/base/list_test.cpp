// SPDX-License-Identifier: Apache-2.0
#include "base/list.h"

#include <gtest/gtest.h>

#include <vector>

namespace gmm {
namespace {

struct ByAge;
struct ByName;
struct Item : Link<ByAge>, Link<ByName> {
  explicit Item(int number) : value(number) {}
  int value;
};

template <typename Tag>
std::vector<int> values(List<Item, Tag> &list) {
  std::vector<int> out;
  for (Item *item = list.front(); item != nullptr; item = list.next(item)) out.push_back(item->value);
  return out;
}

TEST(List, KeepsOrderAtBothEnds) {
  List<Item, ByAge> list;
  Item a(1), b(2), c(3);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.front(), nullptr);
  EXPECT_EQ(list.pop_front(), nullptr);
  list.push_back(&b);
  list.push_front(&a);
  list.push_back(&c);
  EXPECT_EQ(values(list), (std::vector<int>{1, 2, 3}));
  List<Item, ByAge>::remove(&b);
  EXPECT_EQ(values(list), (std::vector<int>{1, 3}));
  EXPECT_FALSE(static_cast<Link<ByAge> &>(b).linked());
  EXPECT_EQ(list.pop_front(), &a);
  EXPECT_EQ(list.pop_front(), &c);
  EXPECT_TRUE(list.empty());
}

TEST(List, AnItemStandsInTwoLists) {
  List<Item, ByAge> ages;
  List<Item, ByName> names;
  Item a(1), b(2);
  ages.push_back(&a);
  ages.push_back(&b);
  names.push_back(&b);
  names.push_back(&a);
  List<Item, ByAge>::remove(&a);
  EXPECT_EQ(values(ages), (std::vector<int>{2}));
  EXPECT_EQ(values(names), (std::vector<int>{2, 1}));
}

}  // namespace
}  // namespace gmm
