// SPDX-License-Identifier: Apache-2.0
// Any driver call inside an operation may fail. The operation then fails with a clear error, leaks nothing, leaves
// everything as before, and a retry works.
#include <cstring>
#include <memory>

#include "cuda_backend_test.h"

namespace gmm::test {
namespace {

fake_cuda_live_t live_but_contexts() {
  fake_cuda_live_t live = DriverUnderTest::get().live();
  live.context_references = 0;
  return live;
}

}  // namespace

void fail_each_call(const char *entry, CUresult result, const Trial &trial, uint64_t *seen) {
  const DriverUnderTest &driver = DriverUnderTest::get();
  const fake_cuda_live_t start = live_but_contexts();
  for (uint64_t kth = 1;; ++kth) {
    ASSERT_LT(kth, 100u) << "no end";
    SCOPED_TRACE("call " + std::to_string(kth) + " fails with " + std::to_string(result));
    trial.begin();
    if (::testing::Test::HasFatalFailure()) return;
    const fake_cuda_live_t before = live_but_contexts();
    const uint64_t failures = driver.failures();
    fail(GMM_ERROR_INVALID_VALUE, "old").ignore();
    driver.fail(entry, kth, result);
    const Status status = trial.run();
    const bool happened = driver.failures() != failures;
    driver.fail(nullptr, 0, CUDA_SUCCESS);
    ASSERT_EQ(driver.current(), nullptr) << "the thread's context";
    if (!status.ok()) {
      ASSERT_TRUE(happened) << status.code() << " without a failed call: " << last_message();
      ++*seen;
      EXPECT_NE(std::strstr(last_message(), "cu"), nullptr) << "the message names no entry: " << last_message();
      EXPECT_NE(std::strstr(last_message(), "; "), nullptr) << "the message gives no advice: " << last_message();
      EXPECT_EQ(live_but_contexts(), before) << "something leaked: " << last_message();
      ASSERT_OK(trial.run()) << "the retry";
    }
    // Else there was a way around the failed call.
    trial.end();
    ASSERT_EQ(live_but_contexts(), start);
    if (!happened) return;
  }
}

Trial trial_of(Backend &backend, const Operation &operation) {
  auto world = std::make_shared<World>();
  return Trial{[world, &backend, &operation] {
                 *world = World();
                 world->backend = &backend;
                 ASSERT_OK(operation.prepare(*world));
               },
               [world, &operation] { return operation.run(*world); },
               [world, &operation] { ASSERT_OK(operation.undo(*world)); }};
}

namespace {

class CudaFailures : public CudaBackendTest {
 protected:
  void SetUp() override {
    if (!driver().is_fake()) GTEST_SKIP() << "needs the fake driver";
    CudaBackendTest::SetUp();
  }
};

TEST_F(CudaFailures, OfEveryCallInEveryOperation) {
  for (CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    uint64_t seen = 0;
    for (const Operation &operation : operations()) {
      if (!possible(backend(), operation)) continue;
      SCOPED_TRACE(operation.name);
      fail_each_call(nullptr, result, trial_of(backend(), operation), &seen);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(seen, operations().size()) << "hardly any failure was seen";
  }
}

// Another backend, whose device is not started yet, does the work.
TEST_F(CudaFailures, OfEveryCallBeforeTheDeviceIsStarted) {
  uint64_t seen = 0;
  for (const Operation &operation : operations()) {
    SCOPED_TRACE(operation.name);
    if (!possible(backend(), operation)) continue;
    Backend *fresh = nullptr;
    World world;
    uint64_t contexts = 0;
    const Trial trial{[&] {
                        world = World();
                        world.backend = &backend();
                        ASSERT_OK(operation.prepare(world));
                        contexts = driver().live().context_references;
                        ASSERT_OK(open_cuda(allocator_.allocator(), log_.log(), &fresh));
                        world.backend = fresh;
                      },
                      [&] { return operation.run(world); },
                      [&] {
                        ASSERT_OK(operation.undo(world));
                        fresh->destroy();
                        EXPECT_EQ(driver().live().context_references, contexts);
                      }};
    fail_each_call(nullptr, CUDA_ERROR_UNKNOWN, trial, &seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(seen, operations().size());
}

TEST_F(CudaFailures, OfTheCallsThatChangeTheThread) {
  for (const char *entry :
       {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"}) {
    uint64_t seen = 0;
    for (const Operation &operation : operations()) {
      if (!possible(backend(), operation)) continue;
      SCOPED_TRACE(std::string(entry) + " in " + operation.name);
      fail_each_call(entry, CUDA_ERROR_UNKNOWN, trial_of(backend(), operation), &seen);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaFailures, OfEveryCallThatMakesTheBackend) {
  const int64_t blocks = allocator_.blocks();
  uint64_t seen = 0;
  for (CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
    Backend *made = nullptr;
    const Trial trial{[&] { made = nullptr; },
                      [&] {
                        const Status status = open_cuda(allocator_.allocator(), log_.log(), &made);
                        EXPECT_TRUE(status.ok() || (made == nullptr && allocator_.blocks() == blocks));
                        return status;
                      },
                      [&] { made->destroy(); }};
    fail_each_call(nullptr, result, trial, &seen);
  }
  EXPECT_GT(seen, 10u);
}

TEST_F(CudaFailures, OfTheHostAllocator) {
  CountingAllocator poor;
  for (int64_t given = 0;; ++given) {
    ASSERT_LT(given, 20);
    Backend *made = nullptr;
    poor.fail_after(given);
    const Status status = open_cuda(poor.allocator(), log_.log(), &made);
    if (status.ok()) {
      made->destroy();
      break;
    }
    EXPECT_EQ(status.code(), GMM_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(poor.blocks(), 0);
  }
  EXPECT_EQ(poor.blocks(), 0);
}

TEST_F(CudaFailures, AreTranslated) {
  const struct {
    CUresult driver;
    gmm_result code;
  } rows[] = {
      {CUDA_ERROR_OUT_OF_MEMORY, GMM_ERROR_OUT_OF_MEMORY},
      {CUDA_ERROR_INVALID_HANDLE, GMM_ERROR_INVALID_HANDLE},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, GMM_ERROR_INVALID_HANDLE},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, GMM_ERROR_CAPTURING},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, GMM_ERROR_CAPTURING},
      {CUDA_ERROR_CAPTURED_EVENT, GMM_ERROR_CAPTURING},
      {CUDA_ERROR_NOT_SUPPORTED, GMM_ERROR_NOT_SUPPORTED},
      {CUDA_ERROR_OPERATING_SYSTEM, GMM_ERROR_SYSTEM},
      {CUDA_ERROR_INVALID_DEVICE, GMM_ERROR_INVALID_DEVICE},
      {CUDA_ERROR_DEINITIALIZED, GMM_ERROR_DRIVER},
      {CUDA_ERROR_ILLEGAL_ADDRESS, GMM_ERROR_DRIVER},
      {CUDA_ERROR_UNKNOWN, GMM_ERROR_DRIVER},
      {CUDA_ERROR_INVALID_PTX, GMM_ERROR_DRIVER},  // the fake has no name for it
  };
  for (const auto &row : rows) {
    driver().fail("cuMemAlloc", 1, row.driver);
    Allocation out;
    EXPECT_FAILS(row.code, backend().allocate(Kind::kDevice, kFirst, kUnit, &out));
    EXPECT_EQ(last_native(), static_cast<int32_t>(row.driver));
    EXPECT_NE(std::strstr(last_message(), "cuMemAlloc"), nullptr) << last_message();
    EXPECT_NE(std::strstr(last_message(), "2097152 bytes on CUDA device 0"), nullptr) << last_message();
    EXPECT_EQ(out.base, nullptr);
  }
  driver().fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  Allocation out;
  EXPECT_FAILS(GMM_ERROR_OUT_OF_HOST_MEMORY, backend().allocate(Kind::kHost, kFirst, kUnit, &out));
}

// The driver is gone when destroy() runs: at the end of the process.
TEST_F(CudaFailures, ShutDownDriverIsTakenAsGone) {
  Allocation out;
  ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &out));
  ASSERT_OK(backend().deallocate(out));
  driver().fail("cuDevicePrimaryCtxRelease", 1, CUDA_ERROR_DEINITIALIZED);
  backend().destroy();
  backend_ = nullptr;
  EXPECT_TRUE(log_.messages().empty());
  driver().fail(nullptr, 0, CUDA_SUCCESS);
  EXPECT_EQ(driver().cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);  // what the driver only pretended to have lost
}

TEST_F(CudaFailures, SecondPinOfARangeIsAnOverlap) {
  std::vector<char> memory(4 * kUnit);
  char *base = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory.data()) + 4095) & ~uintptr_t{4095});
  void *pointer = nullptr;
  ASSERT_OK(backend().pin(base, 2 * kUnit, 0, kFirst, &pointer));
  void *second = nullptr;
  EXPECT_FAILS(GMM_ERROR_OVERLAP, backend().pin(base + kUnit, 2 * kUnit, 0, kFirst, &second));
  EXPECT_EQ(second, nullptr);
  EXPECT_OK(backend().unpin(base, 2 * kUnit));
  EXPECT_FAILS(GMM_ERROR_NOT_PINNED, backend().unpin(base, 2 * kUnit));
}

}  // namespace
}  // namespace gmm::test
