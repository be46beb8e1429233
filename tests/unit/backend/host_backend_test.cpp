// SPDX-License-Identifier: Apache-2.0
// The promises of the host backend alone.
#include "backend/host/host_backend.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <vector>

#include "backend_test.h"
#include "base/os_memory.h"

namespace {
// Addresses whose end a test observes, and the address for devices that the backend gave for them at that moment.
struct {
  gmm::Backend *backend = nullptr;
  std::atomic<void *> address{nullptr};
  std::atomic<void *> device_address{nullptr};
} g_unmapped;
}  // namespace

// The library calls this one in place of the C library's.
extern "C" int munmap(void *address, size_t size) noexcept {
  if (address != nullptr && address == g_unmapped.address.load())
    g_unmapped.device_address = g_unmapped.backend->device_address(address);
  return static_cast<int>(syscall(SYS_munmap, address, size));
}

namespace gmm::test {
namespace {

constexpr uint64_t kUnit = kExtentAlignment;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Device kFirst{0};

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto &each : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class HostBackendTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(host_backend_create(allocator_.allocator(), log_.log(), {64 * kMiB}, &backend_)); }
  void TearDown() override {
    if (backend_ != nullptr) backend_->destroy();
    EXPECT_EQ(allocator_.blocks(), 0);
  }

  CountingAllocator allocator_;
  LogKeeper log_;
  Backend *backend_ = nullptr;
};

TEST_F(HostBackendTest, MoreThanTheMachineHasIsRefused) {
  Backend *large = nullptr;
  ASSERT_OK(host_backend_create(HostAllocator(), log_.log(), {uint64_t{1} << 50}, &large));
  PhysicalHandle handle;
  Allocation out;
  const int descriptors = open_descriptors();
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->create(kFirst, uint64_t{1} << 46, true, &handle));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->allocate(Kind::kDevice, kFirst, uint64_t{1} << 46, true, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, large->allocate(Kind::kManaged, kFirst, uint64_t{1} << 46, true, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, large->allocate(Kind::kHost, kFirst, uint64_t{1} << 46, true, &out));
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, large->create(kHostLocation, uint64_t{1} << 46, true, &handle));
  EXPECT_EQ(open_descriptors(), descriptors);
  ASSERT_OK(large->create(kFirst, kUnit, true, &handle));
  EXPECT_OK(large->release(handle));
  large->destroy();
}

TEST_F(HostBackendTest, ExportedFilesCannotShrink) {
  PhysicalHandle handle;
  int32_t fd = -1;
  ASSERT_OK(backend_->create(kFirst, 2 * kUnit, true, &handle));
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

TEST_F(HostBackendTest, ManyHandlesNeedFewDescriptors) {
  constexpr uint32_t kHandles = 100000;
  Backend *large = nullptr;
  ASSERT_OK(host_backend_create(HostAllocator(), log_.log(), {uint64_t{1} << 50}, &large));
  void *base = nullptr;
  ASSERT_OK(large->reserve(kHandles * kUnit, &base));
  const int before = open_descriptors();
  std::vector<PhysicalHandle> handles(kHandles);
  const auto at = [&](uint32_t i) { return static_cast<char *>(base) + i * kUnit; };
  for (uint32_t i = 0; i < kHandles; ++i) {
    ASSERT_OK(large->create(kFirst, kUnit, false, &handles[i]));
    ASSERT_OK(large->map(at(i), kUnit, handles[i]));
  }
  ASSERT_OK(large->set_access(base, kHandles * kUnit, kFirst, 0));
  EXPECT_LT(open_descriptors() - before, 64);
  for (uint32_t i : {0u, 40u, 41u, kHandles - 1}) std::memset(at(i), static_cast<int>(i % 100 + 1), kUnit);
  EXPECT_EQ(at(40)[kUnit - 1], 41);
  EXPECT_EQ(at(41)[0], 42);
  int32_t fd = -1;
  EXPECT_FALSE(large->is_exportable(handles[41]));  // a descriptor would open handles[40] too
  ASSERT_OK(large->unmap(at(41), kUnit));
  ASSERT_OK(large->release(handles[41]));
  EXPECT_EQ(at(40)[kUnit - 1], 41);
  ASSERT_OK(large->create(kFirst, kUnit, true, &handles[41]));
  ASSERT_OK(large->export_fd(handles[41], &fd));
  close(fd);
  for (uint32_t i = 0; i < kHandles; ++i) ASSERT_OK(large->release(handles[i]));
  ASSERT_OK(large->unmap(base, kHandles * kUnit));
  ASSERT_OK(large->unreserve(base, kHandles * kUnit));
  large->destroy();
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

// As soon as the addresses are unmapped, another thread may get them from malloc(). A copy to them must not be
// redirected.
TEST_F(HostBackendTest, AStrictBackendForgetsAddressesBeforeTheyAreUnmapped) {
  Backend *strict = nullptr;
  ASSERT_OK(host_backend_create(allocator_.allocator(), log_.log(), {64 * kMiB, 1, true}, &strict));
  void *base = nullptr;
  ASSERT_OK(strict->reserve(kUnit, &base));
  EXPECT_NE(strict->device_address(base), base);
  g_unmapped.backend = strict;
  g_unmapped.address = base;
  EXPECT_OK(strict->unreserve(base, kUnit));
  g_unmapped.address = nullptr;
  EXPECT_EQ(g_unmapped.device_address.load(), base);
  strict->destroy();
}

}  // namespace
}  // namespace gmm::test
