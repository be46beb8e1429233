// SPDX-License-Identifier: Apache-2.0
// Opening the driver: other versions, missing entries and abilities.
#include <gmm/pin.h>

#include <cstdlib>
#include <cstring>

#include "cuda_backend_test.h"

namespace gmm::test {
namespace {

// Whatever the driver lacks: each operation works or says NOT_SUPPORTED.
void expect_done_or_not_supported(Backend &backend) {
  for (const Operation &operation : operations()) {
    SCOPED_TRACE(operation.name);
    World world;
    world.backend = &backend;
    Status status = operation.prepare(world);
    if (status.ok()) status = operation.run(world);
    if (status.ok()) {
      EXPECT_OK(operation.undo(world));
      continue;
    }
    EXPECT_FAILS(GMM_ERROR_NOT_SUPPORTED, status);
    // The search for zeros saves time and is no capability: without it everything is copied.
    if (std::strcmp(operation.name, "find_zeros") != 0) {
      EXPECT_FALSE(possible(backend, operation)) << "the device said that it can: " << last_message();
    }
  }
}

class CudaDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!driver().is_fake()) GTEST_SKIP() << "needs the fake driver";
  }
  DriverUnderTest &driver() { return DriverUnderTest::get(); }
  LogKeeper log_;
};

TEST_F(CudaDriver, EntriesThatAreMissing) {
  int without_backend = 0, without_operation = 0;
  for (uint64_t kth = 1;; ++kth) {
    ASSERT_LT(kth, 200u);
    SCOPED_TRACE(kth);
    const uint64_t failures = driver().failures();
    driver().fail("cuGetProcAddress", kth, CUDA_ERROR_NOT_FOUND);
    Backend *backend = nullptr;
    const Status status = open_cuda(HostAllocator(), log_.log(), &backend);
    const bool happened = driver().failures() != failures;
    driver().fail(nullptr, 0, CUDA_SUCCESS);
    if (status.ok()) {
      gmm_device_info info = {};
      EXPECT_OK(backend->device_info(Device{0}, &info));
      expect_done_or_not_supported(*backend);
      backend->destroy();
      if (!happened) break;
      ++without_operation;
      continue;
    }
    EXPECT_FAILS(GMM_ERROR_NO_BACKEND, status);
    EXPECT_NE(std::strstr(last_message(), "has no cu"), nullptr) << last_message();
    ++without_backend;
  }
  EXPECT_GT(without_backend, 20);
  EXPECT_GT(without_operation, 15);
}

TEST_F(CudaDriver, LibraryThatIsMissing) {
  const char *path = std::getenv("GMM_CUDA_DRIVER");
  const std::string before = path != nullptr ? path : "";
  setenv("GMM_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  Backend *backend = nullptr;
  EXPECT_FAILS(GMM_ERROR_NO_BACKEND, open_cuda(HostAllocator(), log_.log(), &backend));
  EXPECT_NE(std::strstr(last_message(), "/nonexistent/libcuda.so.1"), nullptr) << last_message();
  // A library that is none of CUDA's.
  setenv("GMM_CUDA_DRIVER", "libm.so.6", 1);
  EXPECT_FAILS(GMM_ERROR_NO_BACKEND, open_cuda(HostAllocator(), log_.log(), &backend));
  EXPECT_NE(std::strstr(last_message(), "cuGetProcAddress_v2"), nullptr) << last_message();
  if (path != nullptr)
    setenv("GMM_CUDA_DRIVER", before.c_str(), 1);
  else
    unsetenv("GMM_CUDA_DRIVER");
}

TEST_F(CudaDriver, OldDriverOrNoDeviceIsNoBackend) {
  const char *role = std::getenv("TEST_NO_BACKEND");
  if (role == nullptr) {
    const std::string self = "CudaDriver.OldDriverOrNoDeviceIsNoBackend";
    EXPECT_EQ(run_again({"TEST_NO_BACKEND=11.8", "FAKE_CUDA_VERSION=11080"}, self), 0);
    EXPECT_EQ(run_again({"TEST_NO_BACKEND=CUDA_VISIBLE_DEVICES", "FAKE_CUDA_DEVICES=0"}, self), 0);
    return;
  }
  Backend *backend = nullptr;
  EXPECT_FAILS(GMM_ERROR_NO_BACKEND, open_cuda(HostAllocator(), log_.log(), &backend));
  EXPECT_NE(std::strstr(last_message(), role), nullptr) << last_message();
}

// One ability after the other is taken from the fake.
TEST_F(CudaDriver, AbilitiesThatAreMissing) {
  const char *lacks = std::getenv("FAKE_CUDA_LACKS");
  if (lacks == nullptr) {
    for (const char *each : {"vmm", "fd", "managed", "concurrent", "register", "readonly_register", "host_vmm", "ipc"})
      EXPECT_EQ(run_again({std::string("FAKE_CUDA_LACKS=") + each}, "CudaDriver.AbilitiesThatAreMissing"), 0) << each;
    return;
  }
  SCOPED_TRACE(lacks);
  const std::string what = lacks;
  Backend *made = nullptr;
  ASSERT_OK(open_cuda(HostAllocator(), log_.log(), &made));
  Backend &backend = *made;
  gmm_device_info info = {};
  ASSERT_OK(backend.device_info(Device{0}, &info));
  const auto has_kind = [&](gmm_kind kind) { return (info.kinds >> kind & 1) != 0; };
  const auto can = [&](uint32_t ability) { return (info.capabilities & ability) != 0; };
  EXPECT_TRUE(has_kind(GMM_KIND_DEVICE));
  EXPECT_EQ(has_kind(GMM_KIND_VMM), what != "vmm");
  EXPECT_EQ(can(GMM_DEVICE_CAN_PAUSE), what != "vmm");
  EXPECT_EQ(can(GMM_DEVICE_CAN_EXPORT_FD), what != "vmm" && what != "fd");
  EXPECT_EQ(has_kind(GMM_KIND_MANAGED), what != "managed");
  EXPECT_EQ(can(GMM_DEVICE_CAN_CONCURRENT_MANAGED), what != "managed" && what != "concurrent");
  EXPECT_EQ(has_kind(GMM_KIND_HOST), what != "register");
  EXPECT_EQ(can(GMM_DEVICE_CAN_PIN), what != "register");
  EXPECT_EQ(can(GMM_DEVICE_CAN_LEGACY_IPC), what != "ipc");
  EXPECT_EQ(can(GMM_DEVICE_CAN_HOST_NUMA), what != "vmm" && what != "host_vmm");
  EXPECT_FALSE(can(GMM_DEVICE_CAN_PAGEABLE) || can(GMM_DEVICE_CAN_HOST_PAGE_TABLES));

  const Device device{0};
  Allocation out;
  PhysicalHandle handle;
  void *pointer = nullptr;
  alignas(4096) static char page[4096];
  const struct {
    const char *lacks;
    std::function<Status()> run;
  } refused[] = {
      {"vmm", [&] { return backend.create(device, kExtentAlignment, &handle); }},
      {"managed", [&] { return backend.allocate(Kind::kManaged, device, kExtentAlignment, &out); }},
      {"register", [&] { return backend.allocate(Kind::kHost, device, kExtentAlignment, &out); }},
      {"host_vmm", [&] { return backend.create(kHostLocation, kExtentAlignment, &handle); }},
      {"readonly_register", [&] { return backend.pin(page, sizeof page, GMM_PIN_READ_ONLY, device, &pointer); }},
  };
  for (const auto &row : refused) {
    if (what != row.lacks) continue;
    EXPECT_FAILS(GMM_ERROR_NOT_SUPPORTED, row.run());
    EXPECT_NE(std::strstr(last_message(), "CUDA device 0 (Fake CUDA device for tests)"), nullptr) << last_message();
  }
  if (what != "host_vmm") expect_done_or_not_supported(backend);
  backend.destroy();
}

class CudaBackendOnly : public CudaBackendTest {};

TEST_F(CudaBackendOnly, RefusesDevicesThatAreNotThere) {
  const Device beyond{static_cast<int32_t>(backend().device_count())};
  Allocation out;
  gmm_stream stream = nullptr;
  for (Device device : {beyond, Device{-7}}) {
    EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend().allocate(Kind::kDevice, device, kUnit, &out));
    EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend().stream_create(device, 0, &stream));
    EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend().synchronize(device));
  }
}

TEST_F(CudaBackendOnly, RefusesToDestroyDefaultStreams) {
  for (gmm_stream stream : {GMM_STREAM_DEFAULT, GMM_STREAM_LEGACY, GMM_STREAM_PER_THREAD})
    EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend().stream_destroy(stream));
}

}  // namespace
}  // namespace gmm::test
