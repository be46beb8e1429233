// SPDX-License-Identifier: Apache-2.0
// Whatever call of the driver fails inside an operation: a clear error, nothing leaked, everything as before, and a
// retry that works.
#include <cstring>

#include "cuda_backend_test.h"

namespace gmm::test {
namespace {

// Fails the first, second, ... call inside `run` until it gets through without.
void fail_each_call(DriverUnderTest &driver, CUresult result, const std::function<Status()> &run, uint64_t *seen) {
  for (uint64_t kth = 1;; ++kth) {
    ASSERT_LT(kth, 100u) << "no end";
    SCOPED_TRACE("call " + std::to_string(kth) + " fails with " + std::to_string(result));
    const fake_cuda_live_t before = driver.live();
    const uint64_t failures = driver.failures();
    fail(GMM_ERROR_INVALID_VALUE, "old").ignore();
    driver.fail(nullptr, kth, result);
    const Status status = run();
    const bool happened = driver.failures() != failures;
    driver.fail(nullptr, 0, CUDA_SUCCESS);
    ASSERT_EQ(driver.current(), nullptr) << "the thread's context";
    if (status.ok()) return;  // through, or the failed call had a way around it
    ASSERT_TRUE(happened) << status.code() << " without a failed call: " << last_message();
    ++*seen;
    EXPECT_NE(std::strstr(last_message(), "cu"), nullptr) << "the message names no entry: " << last_message();
    EXPECT_NE(std::strstr(last_message(), "; "), nullptr) << "the message gives no advice: " << last_message();
    EXPECT_EQ(driver.live(), before) << "something leaked: " << last_message();
  }
}

class CudaFailures : public CudaBackendTest {
 protected:
  void SetUp() override {
    if (!driver().is_fake()) GTEST_SKIP() << "needs the fake driver";
    CudaBackendTest::SetUp();
  }
};

TEST_F(CudaFailures, OfEveryCallInEveryOperation) {
  for (CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    const fake_cuda_live_t start = driver().live();
    uint64_t seen = 0;
    for (const Operation &operation : operations()) {
      if (!possible(backend(), operation)) continue;
      SCOPED_TRACE(operation.name);
      World world;
      world.backend = &backend();
      ASSERT_OK(operation.prepare(world));
      fail_each_call(
          driver(), result, [&] { return operation.run(world); }, &seen);
      if (HasFatalFailure()) return;
      ASSERT_OK(operation.undo(world));
    }
    // The device stays started.
    fake_cuda_live_t end = driver().live();
    end.context_references = start.context_references;
    EXPECT_EQ(end, start);
    EXPECT_GT(seen, operations().size() / 2) << "hardly any failure was seen";
  }
}

TEST_F(CudaFailures, OfEveryCallBeforeTheDeviceIsStarted) {
  for (const Operation &operation : operations()) {
    Backend *fresh = nullptr;
    SCOPED_TRACE(operation.name);
    if (!possible(backend(), operation)) continue;
    backend_->destroy();
    ASSERT_OK(open_cuda(allocator_.allocator(), log_.log(), &backend_));
    ASSERT_OK(open_cuda(allocator_.allocator(), log_.log(), &fresh));
    World world;
    world.backend = &backend();
    ASSERT_OK(operation.prepare(world));
    // Another backend, whose device is not started yet, does the work.
    world.backend = fresh;
    const uint64_t context_references = driver().live().context_references;
    for (uint64_t kth = 1; kth < 100; ++kth) {
      driver().fail(nullptr, kth, CUDA_ERROR_UNKNOWN);
      const fake_cuda_live_t before = driver().live();
      const Status status = operation.run(world);
      driver().fail(nullptr, 0, CUDA_SUCCESS);
      if (status.ok()) break;
      fake_cuda_live_t after = driver().live();
      EXPECT_LE(after.context_references, context_references + 1);  // started, and kept for the retry
      after.context_references = before.context_references;
      EXPECT_EQ(after, before);
    }
    EXPECT_OK(operation.undo(world));
    fresh->destroy();
    EXPECT_EQ(driver().live().context_references, context_references);
  }
}

TEST_F(CudaFailures, OfEveryCallThatMakesTheBackend) {
  const fake_cuda_live_t start = driver().live();
  const int64_t blocks = allocator_.blocks();
  uint64_t seen = 0;
  for (CUresult result : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
    Backend *made = nullptr;
    fail_each_call(
        driver(), result,
        [&] {
          const Status status = open_cuda(allocator_.allocator(), log_.log(), &made);
          if (!status.ok()) {
            EXPECT_EQ(made, nullptr);
            EXPECT_EQ(allocator_.blocks(), blocks);
          }
          return status;
        },
        &seen);
    ASSERT_NE(made, nullptr);
    made->destroy();
  }
  EXPECT_GT(seen, 10u);
  EXPECT_EQ(driver().live(), start);
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
  EXPECT_EQ(driver().cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);  // what the driver only pretended to have lost
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
