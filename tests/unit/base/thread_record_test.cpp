// SPDX-License-Identifier: Apache-2.0
#include "base/thread_record.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <thread>

#include "base/status.h"
#include "soon.h"

namespace gmm {
namespace {

using test::soon;

std::atomic<int> g_ended{0};
void count_end(void *state) { g_ended += *static_cast<int *>(state); }
int g_one = 1, g_ten = 10;

ThreadRecord *with_parts() {
  ThreadRecord *record = make_thread_record();
  record->set_part(ThreadPart::kTags, &g_one, count_end);
  record->set_part(ThreadPart::kTraceBuffers, &g_ten, count_end);
  return record;
}

uint32_t keys_left() {
  pthread_key_t keys[PTHREAD_KEYS_MAX];
  uint32_t count = 0;
  while (count < PTHREAD_KEYS_MAX && pthread_key_create(&keys[count], nullptr) == 0) ++count;
  for (uint32_t i = 0; i < count; ++i) pthread_key_delete(keys[i]);
  return count;
}

TEST(ThreadRecord, PartsEndWithTheThread) {
  g_ended = 0;
  uint64_t id = 0;
  std::thread([&] {
    ThreadRecord *record = with_parts();
    ASSERT_NE(record, nullptr);
    EXPECT_EQ(record, &own_thread_record());
    EXPECT_EQ(make_thread_record(), record);
    EXPECT_EQ(record->part<int>(ThreadPart::kTraceBuffers), &g_ten);
    EXPECT_EQ(record->part<int>(ThreadPart::kCaches), nullptr);
    id = record->id;
    EXPECT_EQ(current_thread_id(), id);
  }).join();
  EXPECT_EQ(g_ended, 11);
  EXPECT_NE(id, 0u);
  EXPECT_NE(current_thread_id(), id);
}

// A part that ends sees none of itself, and one that it makes meanwhile ends too.
TEST(ThreadRecord, APartMadeByAnEndEndsToo) {
  g_ended = 0;
  std::thread([] {
    make_thread_record()->set_part(ThreadPart::kTags, nullptr, [](void *) {
      EXPECT_EQ(own_thread_record().parts[static_cast<uint32_t>(ThreadPart::kTags)].end, nullptr);
      EXPECT_NE(current_thread_id(), 0u);
      with_parts();
    });
  }).join();
  EXPECT_EQ(g_ended, 11);
}

TEST(ThreadRecord, TheMemoIsReadWithoutACall) {
  ThreadRecord *record = make_thread_record();
  const ThreadRecord::Memo before = record->memo;
  record->memo = ThreadRecord::Memo{77, &g_one};
  EXPECT_EQ(OwnMemo().serial(), 77u);
  EXPECT_EQ(OwnMemo().value(), &g_one);
  std::thread([] {
    EXPECT_EQ(OwnMemo().serial(), 0u);
    own_thread_record().memo = ThreadRecord::Memo{78, &g_ten};
    EXPECT_EQ(OwnMemo().serial(), 78u);
    EXPECT_EQ(OwnMemo().value(), &g_ten);
  }).join();
  EXPECT_EQ(OwnMemo().serial(), 77u);
  record->memo = before;
}

#if defined(__x86_64__)
// What the library does where the loader has no static room for it.
TEST(ThreadRecord, WithoutStaticRoomTheMemoIsAMiss) {
  make_thread_record()->memo = ThreadRecord::Memo{77, &g_one};
  const intptr_t offset = g_memo_offset.exchange(0);
  EXPECT_NE(offset, 0) << "a program's own storage is static";
  EXPECT_GT(OwnMemo().serial(), uint64_t{1} << 32) << "an address, not the number of a heap";
  g_memo_offset = offset;
  EXPECT_EQ(OwnMemo().serial(), 77u);
  own_thread_record().memo = ThreadRecord::Memo{};
}
#endif

TEST(ThreadRecord, TheLastHolderEndsThePartsOfEveryThread) {
  g_ended = 0;
  hold_thread_records();
  with_parts();
  const uint32_t keys = keys_left();
  std::atomic<int> step{0};
  std::thread other([&] {
    with_parts();
    fail(GMM_ERROR_BUSY, "the other's words").ignore();
    step = 1;
    EXPECT_TRUE(soon([&] { return step == 2; }));
    EXPECT_EQ(own_thread_record().part<int>(ThreadPart::kTags), nullptr);
    EXPECT_STREQ(last_message(), "the other's words");
    with_parts();
  });
  EXPECT_TRUE(soon([&] { return step == 1; }));
  hold_thread_records();
  release_thread_records();
  EXPECT_EQ(g_ended, 0);
  release_thread_records();
  EXPECT_EQ(g_ended, 22);
  EXPECT_EQ(keys_left(), keys + 1) << "the thread key is given back";
  step = 2;
  other.join();
  EXPECT_EQ(g_ended, 33) << "a record that was given up is listed again";
}

// The child has the memory of the parent's threads, but none of them.
TEST(ThreadRecord, AChildListsItsOwnThreadsOnly) {
  std::atomic<int> step{0};
  std::thread other([&] {
    with_parts();
    step = 1;
    EXPECT_TRUE(soon([&] { return step == 2; }));
  });
  EXPECT_TRUE(soon([&] { return step == 1; }));
  fail(GMM_ERROR_BUSY, "before the fork").ignore();
  const uint64_t id = current_thread_id();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    g_ended = 0;
    hold_thread_records();
    with_parts();
    if (current_thread_id() != id || std::string(last_message()) != "before the fork") _exit(1);
    std::thread([] {
      with_parts();
      fail(GMM_ERROR_BUSY, "in the child").ignore();
    }).join();
    if (g_ended != 11 || std::string(last_message()) != "before the fork") _exit(2);
    release_thread_records();
    _exit(g_ended == 22 ? 0 : 3);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  step = 2;
  other.join();
}

// Each of many threads that fail and end leaves its room for the next one, whether a context lives or not.
TEST(ThreadRecord, RoomForMessagesIsUsedAgain) {
  const void *seen[400] = {};
  for (const void *&text : seen)
    std::thread([&] {
      fail(GMM_ERROR_BUSY, "one of many").ignore();
      text = last_message();
    }).join();
  std::sort(std::begin(seen), std::end(seen));
  EXPECT_LE(std::unique(std::begin(seen), std::end(seen)) - std::begin(seen), 40);
}

}  // namespace
}  // namespace gmm
