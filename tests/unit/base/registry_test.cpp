// SPDX-License-Identifier: Apache-2.0
#include "base/registry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "base/slot_table.h"
#include "soon.h"

namespace gmm {
namespace {

using test::soon;

class RegistryTest : public testing::Test {
 protected:
  Registry::Place places[4] = {};
  Registry registry{places, 4};
  int objects[8] = {};
};

TEST_F(RegistryTest, SlotsAreUsedAgainAndSerialsAreNot) {
  RegistryKey keys[4], other;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(registry.add(&objects[i], &keys[i]));
    EXPECT_EQ(keys[i].slot, static_cast<uint32_t>(i));
  }
  EXPECT_FALSE(registry.add(&objects[4], &other));
  EXPECT_EQ(registry.visit(keys[2]), &objects[2]);
  registry.leave(keys[2]);
  registry.remove(keys[2]);
  EXPECT_EQ(registry.visit(keys[2]), nullptr);
  EXPECT_FALSE(registry.lives(keys[2]));
  ASSERT_TRUE(registry.add(&objects[5], &other));
  EXPECT_EQ(other.slot, 2u);
  EXPECT_GT(other.serial, keys[3].serial);
  EXPECT_EQ(registry.visit(keys[2]), nullptr);
  EXPECT_TRUE(registry.lives(other));
  registry.remove(RegistryKey{});  // it was never added
  EXPECT_EQ(registry.visit(RegistryKey{}), nullptr);
}

TEST_F(RegistryTest, AnObjectThatIsVisitedDoesNotEnd) {
  RegistryKey key, other;
  ASSERT_TRUE(registry.add(&objects[0], &key));
  ASSERT_EQ(registry.visit(key), &objects[0]);
  ASSERT_EQ(registry.visit(key), &objects[0]);
  std::atomic<bool> removed{false};
  std::thread remover([&] {
    registry.remove(key);
    removed = true;
  });
  // It ends: nobody else finds it, but it is still there for its visitors.
  EXPECT_TRUE(soon([&] { return !registry.lives(key); }));
  EXPECT_EQ(registry.visit(key), nullptr);
  EXPECT_FALSE(removed);
  // The visit does not delay the end of another object, and the slot is not free yet.
  ASSERT_TRUE(registry.add(&objects[1], &other));
  EXPECT_NE(other.slot, key.slot);
  registry.remove(other);
  registry.leave(key);
  EXPECT_FALSE(removed);
  registry.leave(key);
  remover.join();
  EXPECT_TRUE(removed);
  ASSERT_TRUE(registry.add(&objects[1], &other));
  EXPECT_EQ(other.slot, key.slot);
}

Registry::Place g_places[200] = {};
Registry g_registry{g_places, 200};
int g_ends, g_value;

void end_table(void *table) {
  SlotTable::take(table, g_registry, [](void *object, void *value) {
    EXPECT_EQ(object, &g_value);
    EXPECT_EQ(value, &g_ends);
    ++g_ends;
  });
}

TEST(SlotTable, AThreadFindsWhatLivesAndEndsIt) {
  RegistryKey first, last;
  ASSERT_TRUE(g_registry.add(&g_value, &first));
  for (int i = 1; i < 150; ++i) ASSERT_TRUE(g_registry.add(&g_value, &last));
  g_ends = 0;
  std::thread([&] {
    ThreadRecord *record = make_thread_record();
    ASSERT_NE(record, nullptr);
    EXPECT_EQ(SlotTable::find(*record, ThreadPart::kTraceBuffers, first), nullptr);
    for (const RegistryKey &key : {first, last}) {
      ASSERT_TRUE(SlotTable::reserve(record, ThreadPart::kTraceBuffers, key, end_table));
      EXPECT_EQ(SlotTable::find(*record, ThreadPart::kTraceBuffers, key), nullptr);
      SlotTable::set(record, ThreadPart::kTraceBuffers, key, &g_ends);
    }
    EXPECT_EQ(SlotTable::find(*record, ThreadPart::kTraceBuffers, first), &g_ends);
    EXPECT_EQ(SlotTable::find(*record, ThreadPart::kTraceBuffers, last), &g_ends);
    g_registry.remove(first);
    ASSERT_TRUE(g_registry.add(&g_value, &first));  // another object in its slot
    EXPECT_EQ(SlotTable::find(*record, ThreadPart::kTraceBuffers, first), nullptr);
  }).join();
  EXPECT_EQ(g_ends, 1) << "of the two that it had, one lives";
}

}  // namespace
}  // namespace gmm
