// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/stream_order.h"

#include <thread>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

// Keeps a stream busy until it is opened. It may be closed again.
class Barrier {
 public:
  ~Barrier() {
    open();
    while (held_ != 0) usleep(100);
  }
  void close(Engine &engine, gmm_stream stream) {
    while (held_ != 0) usleep(100);
    open_ = false;
    ++held_;
    ASSERT_TRUE(engine.backend->stream_call(Device{0}, stream, hold, this).ok());
  }
  void open() { open_ = true; }

 private:
  static void hold(void *self) {
    auto *barrier = static_cast<Barrier *>(self);
    while (!barrier->open_) usleep(100);
    --barrier->held_;
  }
  std::atomic<bool> open_{false};
  std::atomic<int> held_{0};
};

class StreamOrderTest : public testing::Test {
 protected:
  void TearDown() override {
    order.clear();
    EXPECT_EQ(engine.backend->count("event_create"), engine.backend->count("event_destroy"));
  }
  // The streams of the bits that are done with memory of this stamp, asked now.
  uint64_t done(uint64_t bits, uint64_t stamp) {
    order.ask(bits);
    return order.done(bits, stamp);
  }
  // Memory is freed on the stream; its stamp.
  uint64_t free_on(StreamKey key) {
    const uint64_t stamp = order.stamp();
    EXPECT_TRUE(order.note_frees(key).ok());
    return stamp;
  }
  void finish(StreamKey key) { ASSERT_TRUE(engine.backend->stream_synchronize(Device{0}, key.stream).ok()); }
  Engine engine;
  StreamOrder order{engine.core.backend, engine.core.ended_streams, Device{0}, HostAllocator()};
};

TEST_F(StreamOrderTest, MemoryFreedInACaptureOfAPerThreadStreamIsItsOwnUntilTheEnd) {
  const StreamKey mine{GMM_STREAM_PER_THREAD, 1}, b{engine.stream()};
  const uint64_t bits = order.bit_of(mine);
  engine.backend->captured = GMM_STREAM_PER_THREAD;
  EXPECT_TRUE(order.note_frees(mine).ok());
  const uint64_t stamp = order.stamp();
  engine.backend->captured = nullptr;
  EXPECT_EQ(done(bits, stamp), 0u);
  EXPECT_EQ(order.put_behind(b, bits).code(), GMM_ERROR_CAPTURING);
  EXPECT_TRUE(order.note_frees(mine).ok());
  EXPECT_TRUE(order.put_behind(b, bits).ok());
}

TEST_F(StreamOrderTest, AThreadsOwnStreamIsNotedAndItsPlaceUsedAgain) {
  Barrier barrier;
  const StreamKey key{GMM_STREAM_PER_THREAD, 5};
  uint64_t bit = 0, stamp = 0;
  std::thread([&] {
    bit = order.bit_of(key);
    barrier.close(engine, GMM_STREAM_PER_THREAD);
    stamp = free_on(key);
    order.end_thread(5);
    EXPECT_EQ(done(bit, stamp), 0u);
    EXPECT_NE(order.bit_of(StreamKey{GMM_STREAM_PER_THREAD, 6}), bit) << "the work is not done";
    barrier.open();
    finish(key);
  }).join();
  EXPECT_EQ(done(bit, stamp), bit);
  EXPECT_EQ(order.bit_of(StreamKey{GMM_STREAM_PER_THREAD, 7}), bit);
  EXPECT_EQ(order.known_streams(), 2u);
}

// A rest of memory that a thread's own stream was put behind another one for must not go back to
// the driver while that one still uses it.
TEST_F(StreamOrderTest, AThreadsOwnStreamIsDoneWhenThoseAreThatItWasPutBehind) {
  const StreamKey busy{engine.stream()};
  for (const bool has_freed : {false, true}) {
    const StreamKey key{GMM_STREAM_PER_THREAD, has_freed ? 5u : 6u};
    Barrier barrier;
    uint64_t bit = 0, stamp = 0;
    std::thread([&] {
      if (has_freed) {
        free_on(key);
        finish(key);
      }
      barrier.close(engine, busy.stream);
      const uint64_t bits = order.bit_of(busy);
      free_on(busy);
      ASSERT_TRUE(order.put_behind(key, bits).ok()) << last_message();
      bit = order.bit_of(key);
      stamp = order.stamp();
      EXPECT_EQ(done(bit, stamp), 0u) << has_freed;
      barrier.open();
      finish(key);
      order.end_thread(key.thread);
    }).join();
    EXPECT_EQ(done(bit, stamp), bit) << has_freed;
  }
}

// Nobody else can record an event for that stream, and memory that it freed must not stay with the heap
// for ever.
TEST_F(StreamOrderTest, AThreadsOwnStreamThatCouldNotBeNotedKeepsNothingForEver) {
  for (const bool waited_for : {true, false}) {
    const StreamKey key{GMM_STREAM_PER_THREAD, waited_for ? 5u : 6u};
    uint64_t bit = 0, stamp = 0;
    std::thread([&] {
      bit = order.bit_of(key);
      stamp = free_on(key);
      engine.backend->refuse(1, "event_record");
      if (!waited_for) engine.backend->refuse_also(1, "stream_synchronize");
      EXPECT_EQ(order.note_frees(key).ok(), waited_for);
      engine.backend->refuse(0);
      order.end_thread(key.thread);
    }).join();
    EXPECT_EQ(done(bit, stamp), waited_for ? bit : 0);
    ASSERT_TRUE(order.wait_for_frees(bit).ok());
    EXPECT_EQ(done(bit, stamp), bit);
  }
}

}  // namespace
}  // namespace gmm::test
