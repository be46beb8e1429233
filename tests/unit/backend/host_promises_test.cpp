// SPDX-License-Identifier: Apache-2.0
// What only the host backend promises.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/os_memory.h"
#include "host_backend_test.h"

namespace gmm::test {
namespace {

uint64_t kilobytes_of(const char *path, const std::string &name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.rfind(name, 0) == 0) return std::stoull(line.substr(name.size())) << 10;
  return 0;
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto &each : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}
// The system may show a thread for a moment that has been joined: it carries the flag of one that is on its way out
// (PF_EXITING).
int running_threads() {
  constexpr uint64_t kExiting = 4;
  int count = 0;
  for (const auto &each : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(each.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // Behind the name: state, parent, group, session, terminal, its group, flags.
    std::istringstream words(line.substr(line.rfind(')') + 1));
    std::string word;
    for (int i = 0; i < 7; ++i) words >> word;
    count += (std::stoull(word) & kExiting) == 0;
  }
  return count;
}
// Bytes that memory files hold which this process has open or mapped: nobody else keeps them.
uint64_t memory_file_bytes() {
  uint64_t sum = 0;
  for (const auto &each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(each.path(), gone);
    struct stat status;
    if (!gone && target.find("memfd:") != std::string::npos && ::stat(each.path().c_str(), &status) == 0)
      sum += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") == std::string::npos) continue;
    const size_t dash = line.find('-');
    sum += std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line, nullptr, 16);
  }
  return sum;
}

class HostBackendTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(open_host(allocator_.allocator(), log_.log(), 64 * kMiB, 2, &backend_)); }
  void TearDown() override {
    if (backend_ != nullptr) backend_->destroy();
    EXPECT_EQ(allocator_.blocks(), 0);
    EXPECT_EQ(allocator_.bytes(), 0);
  }
  gmm_device_info info(Device device) {
    gmm_device_info out = {};
    EXPECT_OK(backend_->device_info(device, &out));
    return out;
  }
  uint64_t free_memory(Device device) { return info(device).free_memory; }

  CountingAllocator allocator_;
  LogKeeper log_;
  Backend *backend_ = nullptr;
};

TEST_F(HostBackendTest, SaysWhatItIs) {
  EXPECT_EQ(backend_->id(), GMM_BACKEND_HOST);
  EXPECT_STREQ(backend_->name(), "host");
  EXPECT_EQ(backend_->device_count(), 2u);
  utsname system;
  ASSERT_EQ(uname(&system), 0);
  char version[48];
  backend_->driver_version(version, sizeof version);
  EXPECT_EQ(std::string(version), std::string(system.release).substr(0, 47));
  const gmm_device_info first = info(kFirst), second = info(kSecond);
  EXPECT_EQ(first.total_memory, 64 * kMiB);
  EXPECT_EQ(first.kinds, 0b11110u);
  EXPECT_NE(first.capabilities & GMM_DEVICE_IS_CPU, 0u);
  EXPECT_EQ(first.capabilities & GMM_DEVICE_CAN_LEGACY_IPC, 0u);
  EXPECT_EQ(std::string(first.name).rfind("Host memory (", 0), 0u);
  EXPECT_NE(std::memcmp(first.uuid, second.uuid, 16), 0);
  Backend *again = nullptr;
  ASSERT_OK(open_host(HostAllocator(), log_.log(), 0, 0, &again));
  gmm_device_info same = {};
  ASSERT_OK(again->device_info(kFirst, &same));
  EXPECT_EQ(std::memcmp(first.uuid, same.uuid, 16), 0) << "the same device, whoever asks";
  again->destroy();
  EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend_->device_info(Device{2}, &same));
  EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend_->device_info(kHostLocation, &same));
}

TEST_F(HostBackendTest, RefusesImpossibleOptions) {
  Backend *out = nullptr;
  EXPECT_FAILS(GMM_ERROR_INVALID_VALUE, open_host(HostAllocator(), log_.log(), 0, 17, &out));
  EXPECT_FAILS(GMM_ERROR_INVALID_VALUE, open_host(HostAllocator(), log_.log(), 4096, 1, &out));
  EXPECT_EQ(out, nullptr);
}

TEST_F(HostBackendTest, EachDeviceHasItsOwnMemory) {
  PhysicalHandle whole, more;
  Allocation plain;
  ASSERT_OK(backend_->create(kFirst, 60 * kMiB, &whole));
  EXPECT_EQ(free_memory(kFirst), 4 * kMiB);
  EXPECT_EQ(free_memory(kSecond), 64 * kMiB);
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, backend_->create(kFirst, 6 * kMiB, &more));
  EXPECT_NE(std::strstr(last_message(), "host_memory"), nullptr);
  ASSERT_OK(backend_->allocate(Kind::kDevice, kFirst, 4 * kMiB, &plain));
  EXPECT_EQ(free_memory(kFirst), 0u);
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, backend_->allocate(Kind::kDevice, kFirst, kUnit, &plain));
  ASSERT_OK(backend_->create(kSecond, 64 * kMiB, &more));
  int32_t fd = -1;
  PhysicalHandle imported;
  ASSERT_OK(backend_->export_fd(whole, &fd));
  ASSERT_OK(backend_->import_fd(fd, 60 * kMiB, kSecond, &imported));  // not taken from its memory: it is full
  EXPECT_OK(backend_->release(imported));
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(free_memory(kSecond), 0u);
  EXPECT_OK(backend_->release(whole));
  EXPECT_OK(backend_->deallocate(plain));
  EXPECT_EQ(free_memory(kFirst), 64 * kMiB);
  EXPECT_OK(backend_->release(more));
  EXPECT_EQ(free_memory(kSecond), 64 * kMiB);
}

TEST_F(HostBackendTest, MoreThanTheMachineHasIsRefused) {
  Backend *large = nullptr;
  ASSERT_OK(open_host(HostAllocator(), log_.log(), uint64_t{1} << 50, 1, &large));
  PhysicalHandle handle;
  Allocation out;
  const int descriptors = open_descriptors();
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->create(kFirst, uint64_t{1} << 46, &handle));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->allocate(Kind::kDevice, kFirst, uint64_t{1} << 46, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->allocate(Kind::kManaged, kFirst, uint64_t{1} << 46, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, large->allocate(Kind::kHost, kFirst, uint64_t{1} << 46, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, large->create(kHostLocation, uint64_t{1} << 46, &handle));
  EXPECT_EQ(open_descriptors(), descriptors);
  ASSERT_OK(large->create(kFirst, kUnit, &handle));
  EXPECT_OK(large->release(handle));
  large->destroy();
}

TEST_F(HostBackendTest, ReleasedHandlesAreTold) {
  PhysicalHandle old, young;
  ASSERT_OK(backend_->create(kFirst, kUnit, &old));
  ASSERT_OK(backend_->release(old));
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->release(old));
  ASSERT_OK(backend_->create(kFirst, kUnit, &young));  // has the same descriptor now
  EXPECT_EQ(old.value & 0xffffff, young.value & 0xffffff);
  void *base = nullptr;
  int32_t fd = -1;
  ASSERT_OK(backend_->reserve(kUnit, &base));
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->release(old));
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->map(base, kUnit, old));
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->export_fd(old, &fd));
  EXPECT_FAILS(GMM_ERROR_INVALID_SIZE, backend_->map(base, 2 * kUnit, young));
  EXPECT_EQ(free_memory(kFirst), 62 * kMiB);
  EXPECT_OK(backend_->release(young));
  EXPECT_OK(backend_->unreserve(base, kUnit));
}

TEST_F(HostBackendTest, BadRangesAreRefused) {
  void *base = nullptr;
  ASSERT_OK(backend_->reserve(2 * kUnit, &base));
  PhysicalHandle handle;
  ASSERT_OK(backend_->create(kFirst, kUnit, &handle));
  char *const odd = static_cast<char *>(base) + 4096;
  EXPECT_FAILS(GMM_ERROR_INVALID_ALIGNMENT, backend_->map(odd, kUnit, handle));
  EXPECT_FAILS(GMM_ERROR_INVALID_ALIGNMENT, backend_->unmap(odd, kUnit));
  EXPECT_FAILS(GMM_ERROR_INVALID_ALIGNMENT, backend_->set_access(odd, kUnit, kFirst, 0));
  EXPECT_FAILS(GMM_ERROR_INVALID_SIZE, backend_->map(base, 4096, handle));
  EXPECT_FAILS(GMM_ERROR_INVALID_SIZE, backend_->unreserve(base, 0));
  void *none = nullptr;
  EXPECT_FAILS(GMM_ERROR_INVALID_SIZE, backend_->reserve(4096, &none));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, backend_->reserve(uint64_t{1} << 60, &none));
  EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend_->create(Device{7}, kUnit, &handle));
  EXPECT_EQ(none, nullptr);
  EXPECT_OK(backend_->unreserve(base, 2 * kUnit));
  EXPECT_FAILS(GMM_ERROR_SYSTEM, backend_->set_access(base, kUnit, kFirst, 0)) << "nothing is there any more";
  EXPECT_OK(backend_->release(handle));
}

TEST_F(HostBackendTest, ExportedFilesCannotShrink) {
  PhysicalHandle handle;
  int32_t fd = -1;
  ASSERT_OK(backend_->create(kFirst, 2 * kUnit, &handle));
  ASSERT_OK(backend_->export_fd(handle, &fd));
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(ftruncate(fd, 4 * static_cast<off_t>(kUnit)), -1);
  PhysicalHandle imported;
  EXPECT_FAILS(GMM_ERROR_INVALID_SIZE, backend_->import_fd(fd, 4 * kUnit, kFirst, &imported));
  close(fd);
  EXPECT_OK(backend_->release(handle));
  const int loose = memfd_create("loose", MFD_CLOEXEC);  // large enough, but could shrink under us
  ASSERT_EQ(ftruncate(loose, kUnit), 0);
  EXPECT_FAILS(GMM_ERROR_IPC_INVALID_HANDLE, backend_->import_fd(loose, kUnit, kFirst, &imported));
  close(loose);
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->import_fd(loose, kUnit, kFirst, &imported));
}

TEST_F(HostBackendTest, ReleasedMemoryGoesBackToTheSystem) {
  constexpr uint64_t kSize = 48 * kMiB;
  const uint64_t before = memory_file_bytes();
  PhysicalHandle handle;
  void *base = nullptr;
  ASSERT_OK(backend_->reserve(kSize, &base));
  ASSERT_OK(backend_->create(kFirst, kSize, &handle));
  ASSERT_OK(backend_->map(base, kSize, handle));
  ASSERT_OK(backend_->set_access(base, kSize, kFirst, 0));
  std::memset(base, 1, kSize);
  EXPECT_GE(memory_file_bytes(), before + 2 * kSize) << "the file and its mapping";
  ASSERT_OK(backend_->unmap(base, kSize));
  EXPECT_GE(memory_file_bytes(), before + kSize) << "the handle keeps it";
  ASSERT_OK(backend_->release(handle));
  EXPECT_EQ(memory_file_bytes(), before);
  ASSERT_OK(backend_->unreserve(base, kSize));
}

TEST_F(HostBackendTest, DestroyedAndInventedStreamsAreTold) {
  gmm_stream old = nullptr, young = nullptr;
  ASSERT_OK(backend_->stream_create(kFirst, 0, &old));
  ASSERT_OK(backend_->stream_destroy(old));
  ASSERT_OK(backend_->stream_create(kSecond, 0, &young));
  EXPECT_NE(old, young);
  NativeEvent event = nullptr;
  ASSERT_OK(backend_->event_create(kFirst, &event));
  char byte = 0;
  bool answer = false;
  const auto bad = [](uintptr_t value) { return reinterpret_cast<gmm_stream>(value); };
  for (gmm_stream each : {old, bad(3), bad(0x10 + 1), bad(~uintptr_t{0}), reinterpret_cast<gmm_stream>(&byte)}) {
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_destroy(each));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_synchronize(kFirst, each));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_is_capturing(kFirst, each, &answer));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_call(
                                               kFirst, each, [](void *) {}, nullptr));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->copy(kFirst, each, &byte, &byte, 0));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->fill(kFirst, each, &byte, 0, 1));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->prefetch(&byte, 1, kFirst, kFirst, each));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->event_record(event, kFirst, each));
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_wait(kFirst, each, event));
  }
  for (gmm_stream each : {GMM_STREAM_DEFAULT, GMM_STREAM_LEGACY, GMM_STREAM_PER_THREAD}) {
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->stream_destroy(each));
    EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend_->stream_synchronize(Device{2}, each));
  }
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend_->event_record(nullptr, kFirst, young));
  EXPECT_FAILS(GMM_ERROR_NULL_ARGUMENT, backend_->stream_call(kFirst, young, nullptr, nullptr));
  EXPECT_OK(backend_->event_destroy(event));
  EXPECT_OK(backend_->stream_destroy(young));
}

TEST_F(HostBackendTest, AStreamCannotWaitForItself) {
  struct State {
    Backend *backend;
    gmm_stream stream;
    gmm_result results[3];
  } state = {backend_, nullptr, {}};
  ASSERT_OK(backend_->stream_create(kFirst, 0, &state.stream));
  const auto call = [](void *pointer) {
    State *self = static_cast<State *>(pointer);
    self->results[0] = self->backend->stream_synchronize(kFirst, self->stream).code();
    self->results[1] = self->backend->stream_destroy(self->stream).code();
    self->results[2] = self->backend->synchronize(kFirst).code();
  };
  ASSERT_OK(backend_->stream_call(kFirst, state.stream, call, &state));
  ASSERT_OK(backend_->stream_synchronize(kFirst, state.stream));
  for (gmm_result result : state.results) EXPECT_EQ(result, GMM_ERROR_BUSY);
  EXPECT_OK(backend_->stream_destroy(state.stream));
}

TEST_F(HostBackendTest, StreamsTakeAThreadOnlyForWork) {
  const int before = running_threads();
  gmm_stream streams[8];
  for (gmm_stream &each : streams) {
    ASSERT_OK(backend_->stream_create(kFirst, 0, &each));
    EXPECT_OK(backend_->stream_synchronize(kFirst, each));
  }
  EXPECT_EQ(running_threads(), before);
  ASSERT_OK(backend_->stream_call(
      kFirst, streams[0], [](void *) {}, nullptr));
  EXPECT_EQ(running_threads(), before + 1);
  for (gmm_stream each : streams) EXPECT_OK(backend_->stream_destroy(each));
}

TEST_F(HostBackendTest, EndedThreadsLeaveNoStreamsBehind) {
  const int before = running_threads();
  for (int i = 0; i < 40; ++i) {
    std::thread([this] {
      ASSERT_OK(backend_->stream_call(
          kFirst, GMM_STREAM_PER_THREAD, [](void *) {}, nullptr));
      ASSERT_OK(backend_->stream_synchronize(kFirst, GMM_STREAM_PER_THREAD));
    }).join();
  }
  EXPECT_LE(running_threads(), before + 4) << "an ended thread's stream should serve the next thread";
}

TEST_F(HostBackendTest, DestroyRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  gmm_stream streams[3];
  NativeEvent event = nullptr;
  ASSERT_OK(backend_->event_create(kFirst, &event));
  for (gmm_stream &each : streams) {
    ASSERT_OK(backend_->stream_create(kFirst, 0, &each));
    ASSERT_OK(backend_->stream_wait(kFirst, each, event));
    const auto work = [](void *count) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++*static_cast<std::atomic<int> *>(count);
    };
    for (int i = 0; i < 10; ++i) ASSERT_OK(backend_->stream_call(kFirst, each, work, &ran));
    ASSERT_OK(backend_->event_record(event, kFirst, each));
  }
  ASSERT_OK(backend_->event_destroy(event));
  backend_->destroy();
  backend_ = nullptr;
  EXPECT_EQ(ran.load(), 30);
}

// Every request for bookkeeping memory fails once; the same sequence works after.
TEST_F(HostBackendTest, WantOfBookkeepingMemoryIsAnError) {
  backend_->destroy();
  backend_ = nullptr;
  int failures = 0;
  for (int64_t k = 0; k < 64; ++k) {
    Backend *backend = nullptr;
    gmm_stream stream = nullptr;
    NativeEvent event = nullptr;
    char from = 1, to = 0, other = 0;
    allocator_.fail_after(k);
    Status status = open_host(allocator_.allocator(), log_.log(), 64 * kMiB, 1, &backend);
    if (status.ok()) status = backend->stream_create(kFirst, 0, &stream);
    if (status.ok()) status = backend->event_create(kFirst, &event);
    if (status.ok()) status = backend->copy(kFirst, stream, &to, &from, 1);
    if (status.ok()) status = backend->event_record(event, kFirst, GMM_STREAM_DEFAULT);
    if (status.ok()) status = backend->fill(kFirst, GMM_STREAM_PER_THREAD, &other, 2, 1);
    Gate gate;
    if (status.ok()) status = gate.close(*backend, kFirst, GMM_STREAM_DEFAULT);
    if (status.ok()) status = backend->event_record(event, kFirst, GMM_STREAM_DEFAULT);
    if (status.ok()) status = backend->stream_wait(kFirst, stream, event);
    allocator_.fail_after(-1);
    if (!status.ok()) {
      ++failures;
      EXPECT_EQ(status.code(), GMM_ERROR_OUT_OF_HOST_MEMORY) << last_message();
    }
    gate.open();
    if (event != nullptr) {
      EXPECT_OK(backend->event_destroy(event));
    }
    if (backend != nullptr) {
      EXPECT_OK(backend->fill(kFirst, GMM_STREAM_PER_THREAD, &other, 2, 1)) << "a retry works";
      EXPECT_OK(backend->synchronize(kFirst));
      backend->destroy();
    }
    EXPECT_EQ(allocator_.blocks(), 0) << k;
    if (status.ok()) break;
  }
  EXPECT_GE(failures, 9);
}

}  // namespace

uint64_t shared_memory_in_use(Backend &) { return kilobytes_of("/proc/self/status", "RssShmem:"); }

}  // namespace gmm::test
