// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/by_device.h"

#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "engine/heap/test_support.h"
#include "engine/pause/pauser.h"

namespace gmm::test {
namespace {

struct Logged {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  std::vector<uint32_t> held;
};

// A heap of one tag on each of two devices.
class ByDeviceTest : public testing::Test {
 protected:
  ByDeviceTest() {
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
  ~ByDeviceTest() override {
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

TEST_F(ByDeviceTest, DevicesCopySideBySide) {
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

TEST_F(ByDeviceTest, OneThreadTellsTheProgramAndMayCancel) {
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

TEST_F(ByDeviceTest, AnyFailureOnAnyDeviceLeavesEverythingAsBefore) {
  for (const char *name : {"copy", "unmap", "stream_create", "event_record", "create", "map", "set_access"}) {
    for (bool is_pause : {true, false}) {
      uint64_t k = 1;
      for (; k < 200; ++k) {
        write(static_cast<uint8_t>(k));
        if (!is_pause) {
          ASSERT_TRUE(pauser.pause(request, &bytes).ok()) << last_message();
        }
        engine.backend->refuse(k, name);
        const Status status = is_pause ? pauser.pause(request, &bytes) : pauser.resume(request, true, &bytes);
        const bool was_refused = engine.backend->refused() != 0;
        engine.backend->refuse(0);
        if (!status.ok()) {
          EXPECT_NE(std::string(last_message()).find(std::string(name) + " was refused"), std::string::npos)
              << last_message();
          EXPECT_EQ(paused_bytes(), is_pause ? 0 : 2 * kSize) << name << ' ' << k;
          if (is_pause) {
            ASSERT_TRUE(has(static_cast<uint8_t>(k))) << name << ' ' << k;
          }
          const Status again = is_pause ? pauser.pause(request, &bytes) : pauser.resume(request, true, &bytes);
          ASSERT_TRUE(again.ok()) << last_message();
        }
        if (is_pause) {
          ASSERT_TRUE(pauser.resume(request, true, &bytes).ok()) << last_message();
        }
        ASSERT_TRUE(has(static_cast<uint8_t>(k))) << name << ' ' << k;
        if (!was_refused) break;
      }
      EXPECT_LT(k, 200u);
    }
  }
}

// The callback finds no lock held, on the thread of the pause: it may call gmm, and the program waits for that thread.
TEST_F(ByDeviceTest, AnotherThreadsMessagesComeFromTheCallersThread) {
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

}  // namespace
}  // namespace gmm::test
