// SPDX-License-Identifier: Apache-2.0
// Cases that the interface cannot reach: copies of two devices side by side, failures at chosen operations of a
// backend, and the counts of its operations.
#include "engine/pause/pauser.h"

#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

struct Logged {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  std::vector<uint32_t> held;
};

// A heap of one tag on each of two devices.
class PauserTest : public testing::Test {
 protected:
  PauserTest() {
    EXPECT_TRUE(tags.init().ok());
    gmm_tag_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.contents = GMM_CONTENTS_HOST;
    EXPECT_TRUE(tags.create("kept", &desc, &tag).ok());
    for (int32_t device = 0; device < 2; ++device) {
      HeapOptions options;
      options.kind = Kind::kVmm;
      options.device = Device{device};
      options.tag = tag;
      heaps.push_back(std::make_unique<Heap>(engine.core, engine.backups, engine.captures, options));
      EXPECT_TRUE(heaps.back()->init().ok());
      EXPECT_TRUE(set.add(*heaps.back()));
      void *block = nullptr;
      EXPECT_TRUE(dedicated_alloc(*heaps.back(), kSize, &block).ok()) << last_message();
      blocks.push_back(static_cast<uint8_t *>(block));
    }
    request.tags = &tag;
    request.count = 1;
    write(1);
  }
  ~PauserTest() override {
    pauser.clear();
    for (auto &heap : heaps) EXPECT_TRUE(heap->close(true).ok()) << last_message();
    EXPECT_EQ(engine.backend->count("create"), engine.backend->count("release"));
  }
  void write(uint8_t value) {
    for (uint8_t *block : blocks) std::memset(block, value++, kSize);
  }
  bool has(uint8_t value) {
    for (uint8_t *block : blocks) {
      for (uint64_t i = 0; i < kSize; i += 4093)
        if (block[i] != value) return false;
      ++value;
    }
    return true;
  }
  // The first copy from now on waits for one of another thread.
  void meet_in_copies() {
    const uint64_t before = engine.backend->count("copy");
    engine.backend->before("copy",
                           [this, before] { met = soon([&] { return engine.backend->count("copy") != before; }); });
  }
  uint64_t paused_bytes() {
    gmm_tag_info info = {};
    pauser.query(tag, &info);
    return info.paused_bytes;
  }
  void check_heaps() {
    for (auto &heap : heaps) ASSERT_NO_FATAL_FAILURE(check_heap(engine, *heap));
  }

  static constexpr uint64_t kSize = 16 * kMiB;
  Logged logged;
  const Log log{[](void *user, uint32_t, const char *) {
                  Logged &of = *static_cast<Logged *>(user);
                  const std::lock_guard<std::mutex> guard(of.mutex);
                  of.threads.push_back(std::this_thread::get_id());
                  of.held.push_back(t_locks.held);
                },
                &logged};
  Engine engine{uint64_t{4} << 30, log, 2};
  TagTable tags{HostAllocator()};
  HeapSet set{HostAllocator()};
  Quota held;
  Watchers watchers{engine.core, set, held, &held};
  Pauser pauser{engine.core, engine.backups, set, tags, watchers};
  gmm_tag tag = 0;
  std::vector<std::unique_ptr<Heap>> heaps;
  std::vector<uint8_t *> blocks;
  PauseRequest request;
  uint64_t bytes = 0;
  std::atomic<bool> met{false};
};

TEST_F(PauserTest, DevicesCopySideBySide) {
  meet_in_copies();
  ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
  EXPECT_TRUE(met) << "the devices paused one after the other";
  EXPECT_EQ(bytes, 2 * kSize);
  EXPECT_EQ(paused_bytes(), 2 * kSize);
  met = false;
  meet_in_copies();
  ASSERT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
  EXPECT_TRUE(met) << "the devices resumed one after the other";
  EXPECT_EQ(bytes, 2 * kSize);
  EXPECT_TRUE(has(1));
}

TEST_F(PauserTest, OneThreadTellsTheProgramAndMayCancel) {
  struct Told {
    std::thread::id thread;
    uint64_t last, total;
    bool good, cancels;
  } told = {std::this_thread::get_id(), 0, 0, true, false};
  request.progress.user = &told;
  request.progress.fn = [](void *user, uint64_t copied, uint64_t total) {
    Told &of = *static_cast<Told *>(user);
    of.good = of.good && of.thread == std::this_thread::get_id() && copied >= of.last && copied <= total;
    of.last = copied;
    of.total = total;
    return of.cancels ? 1 : 0;
  };
  ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
  EXPECT_TRUE(told.good);
  EXPECT_EQ(told.total, 2 * kSize);
  EXPECT_EQ(told.last, told.total);
  told.last = 0;
  ASSERT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
  EXPECT_TRUE(told.good);
  told.last = 0;
  told.cancels = true;
  EXPECT_EQ(pauser.pause(request, &bytes).code(), GMM_ERROR_CANCELLED);
  EXPECT_EQ(paused_bytes(), 0u);
  EXPECT_TRUE(has(1));
}

// The callback finds no lock held, on the thread of the pause: it may call gmm, and the program waits for that thread.
TEST_F(PauserTest, AnotherThreadsMessagesComeFromTheCallersThread) {
  engine.backend->refuse(1, "release", true);
  ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
  engine.backend->refuse(0);
  ASSERT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
  EXPECT_TRUE(has(1));
  const std::lock_guard<std::mutex> guard(logged.mutex);
  EXPECT_GE(logged.threads.size(), 2u) << "a handle of each device stayed";
  for (const std::thread::id &thread : logged.threads) EXPECT_EQ(thread, std::this_thread::get_id());
  for (const uint32_t each : logged.held) EXPECT_EQ(each, 0u);
}

// Memory that is allocated during a pause has addresses of its own. They do not pile up.
TEST_F(PauserTest, ManyPausesReserveNoMoreAddresses) {
  const auto cycle = [&] {
    ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
    void *made = nullptr;
    ASSERT_TRUE(cached_alloc(*heaps[0], 5 * kMiB, 0, GMM_STREAM_DEFAULT, &made).ok());
    ASSERT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
    ASSERT_TRUE(cached_free(engine.core, made, GMM_STREAM_DEFAULT).ok());
  };
  for (int i = 0; i < 3; ++i) cycle();
  const auto reserved = [&] { return engine.backend->count("reserve") - engine.backend->count("unreserve"); };
  const uint64_t before = reserved();
  for (int i = 0; i < 10; ++i) cycle();
  EXPECT_LE(reserved(), before);
  check_heaps();
}

// A resume gives up the addresses of dedicated blocks that were freed during the pause. Another heap may get them
// before the contents of the others are copied back.
TEST_F(PauserTest, AddressesThatWentToAnotherHeapAreLeftAlone) {
  void *freed = nullptr, *taken = nullptr;
  ASSERT_TRUE(dedicated_alloc(*heaps[0], kSize, &freed).ok());
  std::memset(freed, 55, kSize);
  HeapOptions options;
  options.kind = Kind::kVmm;
  options.device = Device{0};
  Heap other(engine.core, engine.backups, engine.captures, options);
  ASSERT_TRUE(other.init().ok());
  // The thread runs before the addresses are free, as the system may put a new thread's stack there.
  std::promise<void> go;
  std::thread taker([&] {
    void *volatile first = std::malloc(100);  // the thread's own arena is made now, too
    std::free(first);
    go.get_future().wait();
    dedicated_alloc(other, kSize, &taken).ignore();
  });
  EXPECT_TRUE(pauser.pause(request, &bytes).ok());
  EXPECT_TRUE(cached_free(engine.core, freed, GMM_STREAM_DEFAULT).ok());
  engine.backend->before("stream_create", [&] {
    engine.backend->reserve_next_at(freed);
    go.set_value();
    taker.join();
    if (taken != nullptr) std::memset(taken, 77, kSize);
  });
  EXPECT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
  if (taker.joinable()) {  // the resume did not come that far
    go.set_value();
    taker.join();
  }
  if (taken == nullptr) {
    EXPECT_TRUE(other.close(true).ok());
    GTEST_SKIP() << "something else of the process has the addresses";
  }
  ASSERT_EQ(taken, freed);
  for (uint64_t at = 0; at < kSize; at += 4096) ASSERT_EQ(static_cast<uint8_t *>(taken)[at], 77) << "at " << at;
  EXPECT_TRUE(has(1));
  EXPECT_TRUE(other.close(true).ok());
}

// A view of retained contents lives as long as its memory, also when a pause ends without effect.
TEST_F(PauserTest, AnUndoneHoldEndsNoView) {
  const auto pause_and_retain = [&] {
    ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
    PauseRequest retain = request;
    retain.flags = GMM_RESUME_RETAIN;
    ASSERT_TRUE(pauser.resume(retain, true, &bytes).ok()) << last_message();
  };
  pause_and_retain();
  const void *view = nullptr, *again = nullptr;
  ASSERT_TRUE(pauser.map(blocks[0], kSize, &view).ok()) << last_message();
  TicketState ticket;
  PauseRequest held_request = request;
  held_request.flags = GMM_PAUSE_HOLD;
  held_request.ticket = &ticket;
  held_request.hold_ms = 0;  // it is undone at once
  EXPECT_EQ(pauser.pause(held_request, &bytes).code(), GMM_ERROR_CANCELLED);
  EXPECT_EQ(std::memcmp(view, blocks[0], kSize), 0);
  EXPECT_TRUE(has(1));
  EXPECT_FALSE(pauser.map(blocks[0], kSize, &again).ok()) << "no contents are kept";
  pause_and_retain();
  ASSERT_TRUE(pauser.map(blocks[0], kSize, &again).ok()) << last_message();
  EXPECT_EQ(again, view);
}

}  // namespace
}  // namespace gmm::test
