// SPDX-License-Identifier: Apache-2.0
// Opening the driver: other versions, missing entries and abilities, a fork. Also what the common suite lacks: captured
// streams, legacy IPC, and questions about foreign memory.
#include <gmm/pin.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

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

TEST_F(CudaDriver, VersionIsTold) {
  Backend *backend = nullptr;
  ASSERT_OK(open_cuda(HostAllocator(), log_.log(), &backend));
  char text[48];
  backend->driver_version(text, sizeof text);
  const char *wanted = std::getenv("FAKE_CUDA_VERSION");
  EXPECT_STREQ(text, wanted == nullptr ? "13.0" : "12.4");
  backend->destroy();
  if (wanted == nullptr) {
    EXPECT_EQ(run_again({"FAKE_CUDA_VERSION=12040"}, "CudaDriver.VersionIsTold"), 0);
  }
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

// As on Grace Hopper: the device reads what malloc() gives, and VMM memory lies on the node that the caller names.
TEST_F(CudaDriver, NodesOfTheHostAreLocations) {
  if (std::getenv("FAKE_CUDA_GRACE") == nullptr) {
    EXPECT_EQ(run_again({"FAKE_CUDA_GRACE=1"}, "CudaDriver.NodesOfTheHostAreLocations"), 0);
    return;
  }
  Backend *backend = nullptr;
  ASSERT_OK(open_cuda(HostAllocator(), log_.log(), &backend));
  gmm_device_info info = {};
  ASSERT_OK(backend->device_info(Device{0}, &info));
  constexpr uint32_t kWanted = GMM_DEVICE_CAN_PAGEABLE | GMM_DEVICE_CAN_HOST_PAGE_TABLES | GMM_DEVICE_CAN_HOST_NUMA;
  EXPECT_EQ(info.capabilities & kWanted, kWanted);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  using PropertiesFn = CUresult (*)(CUmemAllocationProp *, CUmemGenericAllocationHandle);
  const auto properties_of = reinterpret_cast<PropertiesFn>(dlsym(library, "cuMemGetAllocationPropertiesFromHandle"));
  ASSERT_NE(properties_of, nullptr);
  const struct {
    gmm_device location;
    int node;
  } cases[] = {{GMM_DEVICE_HOST, 0}, {GMM_DEVICE_NUMA(0), 0}, {GMM_DEVICE_NUMA(1), 1}};
  for (const auto &each : cases) {
    PhysicalHandle handle;
    ASSERT_OK(backend->create(Device{each.location}, kExtentAlignment, &handle));
    CUmemAllocationProp properties = {};
    EXPECT_EQ(properties_of(&properties, handle.value), CUDA_SUCCESS);
    EXPECT_EQ(static_cast<int>(properties.location.type), 3) << "HOST_NUMA";
    EXPECT_EQ(properties.location.id, each.node);
    EXPECT_OK(backend->release(handle));
  }
  PhysicalHandle none;
  EXPECT_FAILS(GMM_ERROR_INVALID_DEVICE, backend->create(Device{GMM_DEVICE_NUMA(2)}, kExtentAlignment, &none));
  EXPECT_NE(std::strstr(last_message(), "NUMA node 2"), nullptr) << last_message();
  dlclose(library);
  backend->destroy();
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

TEST_F(CudaBackendOnly, PinsReadOnly) {
  alignas(4096) static char page[4096];
  void *pointer = nullptr;
  const Status status = backend().pin(page, sizeof page, GMM_PIN_READ_ONLY, kFirst, &pointer);
  if (status.code() == GMM_ERROR_NOT_SUPPORTED) GTEST_SKIP() << last_message();
  ASSERT_OK(status);
  EXPECT_NE(pointer, nullptr);
  EXPECT_OK(backend().unpin(page, sizeof page));
}

TEST_F(CudaBackendOnly, CapturedStreamIsLeftAlone) {
  gmm_stream stream = nullptr;
  ASSERT_OK(backend().stream_create(kFirst, 0, &stream));
  NativeEvent event = nullptr;
  ASSERT_OK(backend().event_create(kFirst, &event));
  CUcontext context = nullptr;
  ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
  const CUstream native = reinterpret_cast<CUstream>(stream);
  ASSERT_EQ(driver().cuStreamBeginCapture_v2(native, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  bool capturing = false;
  EXPECT_OK(backend().stream_is_capturing(kFirst, stream, &capturing));
  EXPECT_TRUE(capturing);
  EXPECT_FAILS(GMM_ERROR_CAPTURING, backend().stream_synchronize(kFirst, stream));
  EXPECT_FAILS(GMM_ERROR_CAPTURING, backend().stream_destroy(stream));
  // What allocates and asks is no part of the graph, and does not end it: neither here nor in another thread.
  const auto work = [&] {
    Allocation allocation;
    for (Kind kind : {Kind::kDevice, Kind::kHost}) {
      ASSERT_OK(backend().allocate(kind, kFirst, kUnit, &allocation));
      EXPECT_OK(backend().deallocate(allocation));
    }
    bool passed = false;
    EXPECT_OK(backend().event_query(event, &passed));
    EXPECT_TRUE(passed);
  };
  work();
  std::thread other(work);
  other.join();
  CUgraph graph = nullptr;
  EXPECT_EQ(driver().cuStreamEndCapture(native, &graph), CUDA_SUCCESS) << "the capture was spoilt";
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(driver().cuGraphDestroy(graph), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  EXPECT_EQ(driver().cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(driver().cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  EXPECT_OK(backend().event_destroy(event));
  EXPECT_OK(backend().stream_destroy(stream));
}

TEST_F(CudaBackendOnly, TellsWhatForeignMemoryIs) {
  const gmm_device_info info = [&] {
    gmm_device_info out = {};
    EXPECT_OK(backend().device_info(kFirst, &out));
    return out;
  }();
  const auto expect = [&](char *base, gmm_usm usm, Kind kind) {
    ForeignPointer out;
    backend().identify(base + 100, &out);
    EXPECT_TRUE(out.known);
    EXPECT_EQ(out.usm, usm);
    EXPECT_EQ(out.kind, kind);
    EXPECT_EQ(out.base, base);
    EXPECT_EQ(out.size, kUnit);
  };
  struct Row {
    Kind kind;
    gmm_usm usm;
  };
  for (Row row :
       {Row{Kind::kDevice, GMM_USM_DEVICE}, Row{Kind::kHost, GMM_USM_HOST}, Row{Kind::kManaged, GMM_USM_SHARED}}) {
    if ((info.kinds >> static_cast<uint32_t>(row.kind) & 1) == 0) continue;
    Allocation allocation;
    ASSERT_OK(backend().allocate(row.kind, kFirst, kUnit, &allocation));
    if (allocation.driver_base == allocation.base) expect(static_cast<char *>(allocation.base), row.usm, row.kind);
    EXPECT_OK(backend().deallocate(allocation));
  }
  if ((info.kinds >> GMM_KIND_VMM & 1) == 0) return;
  void *base = nullptr;
  PhysicalHandle handle;
  ASSERT_OK(backend().reserve(kUnit, &base));
  ASSERT_OK(backend().create(kFirst, kUnit, &handle));
  ASSERT_OK(backend().map(base, kUnit, handle));
  ASSERT_OK(backend().set_access(base, kUnit, kFirst, 0));
  expect(static_cast<char *>(base), GMM_USM_DEVICE, Kind::kVmm);
  EXPECT_OK(backend().unmap(base, kUnit));
  EXPECT_OK(backend().release(handle));
  EXPECT_OK(backend().unreserve(base, kUnit));
  fail(GMM_ERROR_BUSY, "kept").ignore();
  ForeignPointer out;
  backend().identify(base, &out);
  EXPECT_FALSE(out.known);
  EXPECT_STREQ(last_message(), "kept");
}

TEST_F(CudaBackendOnly, SharesDeviceMemoryByLegacyIpc) {
  gmm_device_info info = {};
  ASSERT_OK(backend().device_info(kFirst, &info));
  if ((info.capabilities & GMM_DEVICE_CAN_LEGACY_IPC) == 0) GTEST_SKIP() << "no legacy IPC";
  Allocation allocation;
  ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &allocation));
  const std::vector<uint8_t> bytes = pattern(4096, 40);
  ASSERT_OK(backend().copy(kFirst, GMM_STREAM_DEFAULT, allocation.base, bytes.data(), bytes.size()));
  ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
  uint8_t handle[kLegacyHandleSize];
  ASSERT_OK(backend().legacy_export(allocation.driver_base, handle));
  std::string hex;
  for (uint8_t byte : handle) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  const uint64_t offset =
      static_cast<uint64_t>(static_cast<char *>(allocation.base) - static_cast<char *>(allocation.driver_base));
  EXPECT_EQ(play_in_child("legacy_import", {hex, std::to_string(offset)}, -1), 0);
  std::vector<uint8_t> seen(4096);
  ASSERT_OK(backend().copy(kFirst, GMM_STREAM_DEFAULT, seen.data(), allocation.base, seen.size()));
  ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
  EXPECT_EQ(seen, pattern(4096, 41));
  EXPECT_OK(backend().deallocate(allocation));
}

TEST_F(CudaBackendOnly, ForkedChildIsRefusedAndTouchesNothing) {
  Allocation allocation;
  ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &allocation));
  const pid_t child = fork();
  if (child == 0) {
    Backend *second = nullptr;
    const Status status = open_cuda(HostAllocator(), Log(nullptr, nullptr), &second);
    if (status.code() != GMM_ERROR_NO_BACKEND || std::strstr(last_message(), "fork") == nullptr) _exit(2);
    backend().destroy();
    _exit(allocator_.blocks() == 0 ? 0 : 3);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  EXPECT_OK(backend().deallocate(allocation));
}

// A finalizer that runs after the driver's own exit handlers.
TEST_F(CudaBackendOnly, EndsAtProcessExitWithTheDriver) { EXPECT_EQ(play_in_child("late_end", {}, -1), 0); }

}  // namespace

int play_late_end(const std::vector<std::string> &) {
  static Backend *kept = nullptr;
  // Handlers run in reverse order: the driver's, which comes with cuInit(), before this one.
  std::atexit([] { kept->destroy(); });
  if (!open_cuda(HostAllocator(), Log(nullptr, nullptr), &kept).ok()) _exit(1);
  if (!kept->synchronize(Device{0}).ok()) _exit(2);
  return 0;
}

int play_legacy_import(const std::vector<std::string> &arguments) {
  const std::string &hex = arguments.at(0);
  const uint64_t offset = std::stoull(arguments.at(1));
  uint8_t handle[kLegacyHandleSize];
  for (size_t i = 0; i < kLegacyHandleSize; ++i)
    handle[i] = static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  DriverUnderTest &driver = DriverUnderTest::get();
  Backend *backend = nullptr;
  const Device device{0};
  const auto failed = [](int step) {
    std::fprintf(stderr, "child: step %d: %s\n", step, last_message());
    return step;
  };
  if (!open_cuda(HostAllocator(), Log(nullptr, nullptr), &backend).ok()) return failed(1);
  if (!backend->synchronize(device).ok()) return failed(2);
  void *base = nullptr;
  const auto open = [&] { return backend->legacy_import(handle, device, &base); };
  const auto close = [&] { return backend->legacy_close(base); };
  if (!open().ok()) return failed(3);
  std::vector<uint8_t> seen(4096);
  char *bytes = static_cast<char *>(base) + offset;
  if (!backend->copy(device, GMM_STREAM_DEFAULT, seen.data(), bytes, seen.size()).ok()) return failed(5);
  if (!backend->stream_synchronize(device, GMM_STREAM_DEFAULT).ok()) return failed(6);
  if (seen != pattern(4096, 40)) return failed(7);
  const std::vector<uint8_t> answer = pattern(4096, 41);
  if (!backend->copy(device, GMM_STREAM_DEFAULT, bytes, answer.data(), answer.size()).ok()) return failed(8);
  if (!backend->stream_synchronize(device, GMM_STREAM_DEFAULT).ok()) return failed(9);
  if (!close().ok()) return failed(4);
  if (driver.is_fake()) {
    uint64_t failures = 0;
    fail_each_call(nullptr, CUDA_ERROR_UNKNOWN, {[] {}, open, [&] { EXPECT_OK(close()); }}, &failures);
    fail_each_call(nullptr, CUDA_ERROR_UNKNOWN, {[&] { EXPECT_OK(open()); }, close, [] {}}, &failures);
    if (failures < 2 || ::testing::Test::HasFailure()) return failed(11);
  }
  uint8_t garbage[kLegacyHandleSize] = {1, 2, 3};
  if (driver.is_fake() && backend->legacy_import(garbage, device, &base).ok()) return failed(10);
  backend->destroy();
  return 0;
}

}  // namespace gmm::test
