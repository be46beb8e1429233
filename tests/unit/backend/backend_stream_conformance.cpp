// SPDX-License-Identifier: Apache-2.0
// What every backend does with streams and events.
#include <chrono>
#include <cstring>
#include <thread>

#include "backend_conformance.h"

namespace gmm::test {
namespace {

using namespace std::chrono_literals;

// Long enough for work that is wrongly let through to show.
void give_it_time() { std::this_thread::sleep_for(30ms); }

struct Order {
  std::atomic<int> count{0};
  int seen[64] = {};
};
struct Step {
  Order *order;
  int number;
};
void take_step(void *step_pointer) {
  Step *step = static_cast<Step *>(step_pointer);
  step->order->seen[step->order->count.fetch_add(1)] = step->number;
}
void set_flag(void *flag) { static_cast<std::atomic<bool> *>(flag)->store(true); }

TEST_P(BackendConformance, WorkOnAStreamRunsInOrder) {
  gmm_stream stream = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &stream));
  Allocation memory;
  ASSERT_OK(backend().allocate(Kind::kHost, kFirst, kUnit, &memory));
  uint8_t *const bytes = static_cast<uint8_t *>(memory.base);
  Gate gate;
  ASSERT_OK(gate.close(backend(), kFirst, stream));
  const std::vector<uint8_t> source = pattern(kUnit, 20);
  ASSERT_OK(backend().copy(kFirst, stream, bytes, source.data(), kUnit));
  ASSERT_OK(backend().fill(kFirst, stream, bytes, 0x77, 100));
  ASSERT_OK(backend().copy(kFirst, stream, bytes + 200, bytes, 100));
  Order order;
  std::vector<Step> steps;
  for (int i = 0; i < 64; ++i) steps.push_back(Step{&order, i});
  for (Step &step : steps) ASSERT_OK(backend().stream_call(kFirst, stream, take_step, &step));
  give_it_time();
  EXPECT_EQ(order.count.load(), 0) << "work overtook the work before it";
  gate.open();
  ASSERT_OK(backend().stream_synchronize(kFirst, stream));
  EXPECT_EQ(order.count.load(), 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(order.seen[i], i);
  std::vector<uint8_t> expected = source;
  std::memset(expected.data(), 0x77, 100);
  std::memset(expected.data() + 200, 0x77, 100);
  EXPECT_EQ(std::memcmp(bytes, expected.data(), kUnit), 0);
  EXPECT_OK(backend().stream_destroy(stream));
  EXPECT_OK(backend().deallocate(memory));
}

TEST_P(BackendConformance, EmptyWorkIsNothing) {
  EXPECT_OK(backend().copy(kFirst, GMM_STREAM_DEFAULT, nullptr, nullptr, 0));
  EXPECT_OK(backend().fill(kFirst, GMM_STREAM_DEFAULT, nullptr, 0, 0));
  EXPECT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
  EXPECT_OK(backend().synchronize(kFirst));
}

TEST_P(BackendConformance, FindsZeros) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "only contents of paused memory are searched";
  constexpr uint64_t kSize = 64 << 10;
  Allocation table, memory;
  ASSERT_OK(backend().allocate(Kind::kHost, kFirst, kUnit, &table));
  ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &memory));
  gmm_stream stream = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &stream));
  // Ranges that begin and end anywhere, with a byte that is not zero before, at each place in, and behind them.
  std::vector<uint8_t> bytes(kSize, 0);
  std::vector<ZeroRange> ranges;
  std::vector<uint32_t> expected;
  const uint64_t base = reinterpret_cast<uint64_t>(memory.base);
  const uint64_t marked = 4096 + 37;
  bytes[marked] = 1;
  for (uint64_t begin = marked - 40; begin <= marked + 2; ++begin)
    for (const uint64_t size : {1, 3, 15, 16, 17, 31, 32, 33, 48, 50000}) {
      ranges.push_back(ZeroRange{base + begin, size, 0, 0});
      expected.push_back(begin <= marked && marked < begin + size ? 1 : 0);
    }
  write(memory.base, bytes);
  ASSERT_LE(ranges.size() * sizeof(ZeroRange), kUnit);
  std::memcpy(table.base, ranges.data(), ranges.size() * sizeof(ZeroRange));
  ASSERT_OK(backend().find_zeros(kFirst, stream, static_cast<ZeroRange *>(table.base), ranges.size()));
  ASSERT_OK(backend().stream_synchronize(kFirst, stream));
  for (size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ(static_cast<ZeroRange *>(table.base)[i].nonzero, expected[i])
        << ranges[i].base - base << " " << ranges[i].size;
  ASSERT_OK(backend().stream_destroy(stream));
  ASSERT_OK(backend().deallocate(memory));
  ASSERT_OK(backend().deallocate(table));
}

TEST_P(BackendConformance, EventsOrderWorkAcrossStreams) {
  gmm_stream producer = nullptr, consumer = nullptr;
  NativeEvent event = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &producer));
  ASSERT_OK(backend().stream_create(kFirst, 0, &consumer));
  ASSERT_OK(backend().event_create(kFirst, &event));
  Gate gate;
  std::atomic<bool> produced{false}, consumed{false};
  ASSERT_OK(gate.close(backend(), kFirst, producer));
  ASSERT_OK(backend().stream_call(kFirst, producer, set_flag, &produced));
  ASSERT_OK(backend().event_record(event, kFirst, producer));
  ASSERT_OK(backend().stream_wait(kFirst, consumer, event));
  ASSERT_OK(backend().stream_call(kFirst, consumer, set_flag, &consumed));
  bool passed = true;
  ASSERT_OK(backend().event_query(event, &passed));
  EXPECT_FALSE(passed);
  give_it_time();
  EXPECT_FALSE(consumed.load());
  gate.open();
  ASSERT_OK(backend().event_synchronize(event));
  EXPECT_TRUE(produced.load());
  ASSERT_OK(backend().event_query(event, &passed));
  EXPECT_TRUE(passed);
  ASSERT_OK(backend().stream_synchronize(kFirst, consumer));
  EXPECT_TRUE(consumed.load());
  EXPECT_OK(backend().event_destroy(event));
  EXPECT_OK(backend().stream_destroy(producer));
  EXPECT_OK(backend().stream_destroy(consumer));
}

TEST_P(BackendConformance, EventThatWasNeverRecordedHasPassed) {
  NativeEvent event = nullptr;
  ASSERT_OK(backend().event_create(kFirst, &event));
  bool passed = false;
  EXPECT_OK(backend().event_query(event, &passed));
  EXPECT_TRUE(passed);
  EXPECT_OK(backend().event_synchronize(event));
  EXPECT_OK(backend().stream_wait(kFirst, GMM_STREAM_DEFAULT, event));
  EXPECT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
  EXPECT_OK(backend().event_destroy(event));
}

// CUDA runs the calls of all streams on one thread: behind the second gate nothing may be a call.
TEST_P(BackendConformance, WaitKeepsWhatTheEventMeantThen) {
  gmm_stream a = nullptr, b = nullptr;
  NativeEvent event = nullptr, behind = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &a));
  ASSERT_OK(backend().stream_create(kFirst, 0, &b));
  ASSERT_OK(backend().event_create(kFirst, &event));
  ASSERT_OK(backend().event_create(kFirst, &behind));
  Gate first, second;
  bool passed = true;
  ASSERT_OK(first.close(backend(), kFirst, a));
  ASSERT_OK(backend().event_record(event, kFirst, a));
  ASSERT_OK(backend().stream_wait(kFirst, b, event));
  ASSERT_OK(backend().event_record(behind, kFirst, b));
  ASSERT_OK(second.close(backend(), kFirst, a));
  ASSERT_OK(backend().event_record(event, kFirst, a));  // another point now; the wait stays at the first
  EXPECT_OK(backend().event_destroy(event));            // while work waits for it
  give_it_time();
  ASSERT_OK(backend().event_query(behind, &passed));
  EXPECT_FALSE(passed);
  first.open();
  ASSERT_OK(backend().event_synchronize(behind));
  second.open();
  EXPECT_OK(backend().event_destroy(behind));
  EXPECT_OK(backend().stream_destroy(a));
  EXPECT_OK(backend().stream_destroy(b));
}

TEST_P(BackendConformance, DestroyingAStreamWaitsForItsWork) {
  gmm_stream stream = nullptr;
  NativeEvent event = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &stream));
  ASSERT_OK(backend().event_create(kFirst, &event));
  Gate gate;
  std::atomic<bool> done{false};
  ASSERT_OK(gate.close(backend(), kFirst, stream));
  ASSERT_OK(backend().stream_call(kFirst, stream, set_flag, &done));
  ASSERT_OK(backend().event_record(event, kFirst, stream));
  std::thread opener([&gate] {
    give_it_time();
    gate.open();
  });
  EXPECT_OK(backend().stream_destroy(stream));
  EXPECT_TRUE(done.load());
  opener.join();
  bool passed = false;
  EXPECT_OK(backend().event_query(event, &passed));  // the event outlives its stream
  EXPECT_TRUE(passed);
  EXPECT_OK(backend().stream_wait(kFirst, GMM_STREAM_DEFAULT, event));
  EXPECT_OK(backend().event_synchronize(event));
  EXPECT_OK(backend().event_destroy(event));
}

TEST_P(BackendConformance, LegacyIsTheDefaultStream) {
  Gate gate;
  std::atomic<bool> done{false};
  ASSERT_OK(gate.close(backend(), kFirst, GMM_STREAM_LEGACY));
  ASSERT_OK(backend().stream_call(kFirst, GMM_STREAM_DEFAULT, set_flag, &done));
  give_it_time();
  EXPECT_FALSE(done.load());
  gate.open();
  ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_LEGACY));
  EXPECT_TRUE(done.load());
}

TEST_P(BackendConformance, EachThreadHasItsOwnDefaultStream) {
  Gate gate;
  std::thread other([this, &gate] { ASSERT_OK(gate.close(backend(), kFirst, GMM_STREAM_PER_THREAD)); });
  other.join();
  // Either the ended thread's stream is free for another thread, or it is gone: it is not this one's while this one
  // lives.
  std::atomic<bool> done{false};
  std::thread own([this, &gate, &done] {
    Gate mine;
    ASSERT_OK(mine.close(backend(), kFirst, GMM_STREAM_PER_THREAD));
    gate.open();
    ASSERT_OK(backend().stream_call(kFirst, GMM_STREAM_PER_THREAD, set_flag, &done));
    give_it_time();
    EXPECT_FALSE(done.load());
    mine.open();
    ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_PER_THREAD));
    EXPECT_TRUE(done.load());
  });
  own.join();
  // Two that live at once don't hold each other up.
  Gate held;
  ASSERT_OK(held.close(backend(), kFirst, GMM_STREAM_PER_THREAD));
  std::thread free_thread([this] {
    NativeEvent event = nullptr;  // not a call, as CUDA runs the calls of all streams on one thread
    ASSERT_OK(backend().event_create(kFirst, &event));
    ASSERT_OK(backend().event_record(event, kFirst, GMM_STREAM_PER_THREAD));
    ASSERT_OK(backend().event_synchronize(event));
    ASSERT_OK(backend().event_destroy(event));
  });
  free_thread.join();
  held.open();
  ASSERT_OK(backend().synchronize(kFirst));  // the streams still use the gates
}

TEST_P(BackendConformance, SynchronizeWaitsForEveryStreamOfTheDevice) {
  gmm_stream stream = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &stream));
  Gate gates[3];
  std::atomic<bool> done[3] = {};
  const gmm_stream streams[3] = {stream, GMM_STREAM_DEFAULT, GMM_STREAM_PER_THREAD};
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(gates[i].close(backend(), kFirst, streams[i]));
    ASSERT_OK(backend().stream_call(kFirst, streams[i], set_flag, &done[i]));
  }
  std::thread opener([&gates] {
    for (Gate &gate : gates) {
      give_it_time();
      gate.open();
    }
  });
  EXPECT_OK(backend().synchronize(kFirst));
  for (const std::atomic<bool> &each : done) EXPECT_TRUE(each.load());
  opener.join();
  EXPECT_OK(backend().stream_destroy(stream));
}

TEST_P(BackendConformance, StreamsAreNotCapturingUnlessToldSo) {
  bool capturing = true;
  EXPECT_OK(backend().stream_is_capturing(kFirst, GMM_STREAM_DEFAULT, &capturing));
  EXPECT_FALSE(capturing);
}

TEST_P(BackendConformance, ManyStreamsWaitForEachOther) {
  constexpr int kStreams = 6, kRounds = 50;
  gmm_stream streams[kStreams];
  NativeEvent events[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_OK(backend().stream_create(kFirst, 0, &streams[i]));
    ASSERT_OK(backend().event_create(kFirst, &events[i]));
  }
  Allocation memory;
  ASSERT_OK(backend().allocate(Kind::kHost, kFirst, kUnit, &memory));
  uint64_t *const counter = static_cast<uint64_t *>(memory.base);
  *counter = 0;
  // Unordered, these increments would race: the thread sanitizer sees it, and so does the sum.
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < kStreams; ++i) {
      const int before = (i + kStreams - 1) % kStreams;
      ASSERT_OK(backend().stream_wait(kFirst, streams[i], events[before]));
      ASSERT_OK(backend().stream_call(
          kFirst, streams[i], [](void *value) { ++*static_cast<uint64_t *>(value); }, counter));
      ASSERT_OK(backend().event_record(events[i], kFirst, streams[i]));
    }
  ASSERT_OK(backend().synchronize(kFirst));
  EXPECT_EQ(*counter, static_cast<uint64_t>(kStreams) * kRounds);
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_OK(backend().event_destroy(events[i]));
    EXPECT_OK(backend().stream_destroy(streams[i]));
  }
  EXPECT_OK(backend().deallocate(memory));
}

}  // namespace
}  // namespace gmm::test
