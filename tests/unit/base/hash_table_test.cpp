// SPDX-License-Identifier: Apache-2.0
#include "base/hash_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gmm {
namespace {

struct Word {
  uint32_t key, text;
};

class HashTableTest : public ::testing::Test {
 protected:
  bool add(uint32_t key, uint32_t text, uint64_t hash) {
    if (!table_.reserve()) return false;
    table_.add(hash, Word{key, text});
    return true;
  }
  const Word *find(uint32_t key, uint64_t hash) const {
    return table_.find(hash, [key](const Word &word) { return word.key == key; });
  }
  void remove(uint32_t key, uint64_t hash) {
    table_.remove(hash, [key](const Word &word) { return word.key == key; });
  }
  HashTable<Word> table_{HostAllocator()};
};

TEST_F(HashTableTest, AnEmptyTableFindsNothing) {
  EXPECT_EQ(find(1, 1), nullptr);
  table_.clear();
  EXPECT_EQ(table_.count(), 0u);
}

// Few hashes, so that chains meet, wrap around the end, and move up behind gaps. Zero is a hash like any other.
TEST_F(HashTableTest, HoldsWhatAMapHolds) {
  for (const uint64_t hashes : {1u, 3u, 17u, 1000u}) {
    std::mt19937 random(static_cast<unsigned>(hashes));
    std::map<uint32_t, uint32_t> model;
    table_.clear();
    for (uint32_t step = 0; step < 20000; ++step) {
      const uint32_t key = random() % 60;
      const uint64_t hash = key % hashes;
      if (model.contains(key)) {
        remove(key, hash);
        model.erase(key);
      } else {
        ASSERT_TRUE(add(key, step, hash));
        model[key] = step;
      }
      ASSERT_EQ(table_.count(), model.size());
      if (step % 7 != 0) continue;
      for (uint32_t each = 0; each < 60; ++each) {
        const Word *found = find(each, each % hashes);
        ASSERT_EQ(found != nullptr, model.contains(each)) << each << " after " << step << " steps";
        if (found != nullptr) {
          ASSERT_EQ(found->text, model[each]);
        }
      }
    }
  }
}

TEST_F(HashTableTest, WithoutMemoryNothingChanges) {
  static int left;
  left = 1;
  const HostAllocator one([](void *, uint64_t size, uint64_t) { return left-- > 0 ? std::malloc(size) : nullptr; },
                          [](void *, void *memory, uint64_t) { std::free(memory); }, nullptr);
  HashTable<Word> table{one};
  for (uint32_t key = 0; key < 8; ++key) {
    ASSERT_TRUE(table.reserve()) << key;
    table.add(key, Word{key, key});
  }
  EXPECT_FALSE(table.reserve());
  EXPECT_EQ(table.count(), 8u);
  for (uint32_t key = 0; key < 8; ++key)
    EXPECT_NE(table.find(key, [key](const Word &word) { return word.key == key; }), nullptr) << key;
}

}  // namespace
}  // namespace gmm
