// SPDX-License-Identifier: Apache-2.0
// One suite that every Backend has to pass. A test program lists its backends, instantiates BackendConformance
// with them and calls conformance_main().
#ifndef GMM_TESTS_UNIT_BACKEND_BACKEND_CONFORMANCE_H
#define GMM_TESTS_UNIT_BACKEND_BACKEND_CONFORMANCE_H

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "../page_locks.h"
#include "backend/backend.h"
#include "base/lock.h"

namespace gmm::test {

struct BackendUnderTest {
  const char *name;
  Status (*open)(const HostAllocator &allocator, const Log &log, Backend **out);
  // Bytes of physical memory that the process takes now, as the system or the driver tells.
  uint64_t (*memory_in_use)(Backend &backend);
};

// A part that this program plays when it starts itself; returns the exit status.
struct ChildRole {
  const char *name;
  int (*play)(const std::vector<std::string> &arguments);
};

int conformance_main(int argc, char **argv, const std::vector<BackendUnderTest> &backends,
                     const std::vector<ChildRole> &roles);
// Starts this program in a role and waits. `fd` is descriptor 10 there; -1: none. The exit status, or -1 when it died.
int play_in_child(const char *role, const std::vector<std::string> &arguments, int fd);
inline constexpr int kChildFd = 10;

// Counts what it gives, to find leaks, and can fail the k-th request.
class CountingAllocator {
 public:
  HostAllocator allocator() { return HostAllocator(&allocate, &deallocate, this); }
  int64_t blocks() const { return blocks_.load(); }
  int64_t bytes() const { return bytes_.load(); }
  void fail_after(int64_t requests) { left_.store(requests); }  // below 0: never

 private:
  static void *allocate(void *self, uint64_t size, uint64_t alignment);
  static void deallocate(void *self, void *memory, uint64_t size);
  std::atomic<int64_t> blocks_{0}, bytes_{0}, left_{-1};
};

// Log messages, kept.
class LogKeeper {
 public:
  Log log() { return Log(&write, this); }
  std::vector<std::string> messages();

 private:
  static void write(void *self, uint32_t level, const char *message);
  Mutex mutex_{LockRank::kTest};
  std::vector<std::string> messages_;
};

::testing::AssertionResult ok(Status status);
::testing::AssertionResult failed_with(gmm_result code, Status status);  // and there is a message
#define EXPECT_OK(expression) EXPECT_TRUE(::gmm::test::ok(expression))
#define ASSERT_OK(expression) ASSERT_TRUE(::gmm::test::ok(expression))
#define EXPECT_FAILS(code, expression) EXPECT_TRUE(::gmm::test::failed_with(code, expression))

// Holds a stream up: open() lets the work behind it run.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!opened_.exchange(true)) promise_.set_value();
  }
  Status close(Backend &backend, Device device, gmm_stream stream) {
    // The stream has its own hold on the future: it may still wake up when the gate is gone.
    using Future = std::shared_future<void>;
    Future *future = new Future(future_);
    const auto wait = [](void *user) {
      static_cast<Future *>(user)->wait();
      delete static_cast<Future *>(user);
    };
    Status status = backend.stream_call(device, stream, wait, future);
    if (!status.ok()) delete future;
    return status;
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_{promise_.get_future().share()};
  std::atomic<bool> opened_{false};
};

std::vector<uint8_t> pattern(uint64_t size, uint8_t seed);

class BackendConformance : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;
  static constexpr uint64_t kUnit = kExtentAlignment;
  static constexpr Device kFirst{0};

  void SetUp() override;
  void TearDown() override;
  Backend &backend() { return *backend_; }
  void close();  // ends the backend before the test does
  gmm_device_info info(Device device = kFirst);
  bool can(uint32_t capability) { return (info().capabilities & capability) != 0; }
  uint64_t memory_in_use() { return GetParam().memory_in_use(backend()); }

  // Through the backend's copy, as the host may have no access. Both wait.
  void write(void *destination, const std::vector<uint8_t> &bytes, Device device = kFirst);
  std::vector<uint8_t> read(const void *source, uint64_t size, Device device = kFirst);

  struct Mapping {
    void *base = nullptr;
    uint64_t size = 0;
    PhysicalHandle handle;
  };
  Status map_new(uint64_t size, Mapping *out, Device device = kFirst);  // reserve, create, map, access
  Status drop(const Mapping &mapping);                                  // all back

  CountingAllocator allocator_;
  LogKeeper log_;

 private:
  Backend *backend_ = nullptr;
};

}  // namespace gmm::test
#endif
