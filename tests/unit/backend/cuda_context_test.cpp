// SPDX-License-Identifier: Apache-2.0
// Every operation leaves the calling thread's driver context as it was.
#include <atomic>
#include <chrono>
#include <thread>

#include "cuda_backend_test.h"

namespace gmm::test {
namespace {

class CudaContext : public CudaBackendTest {
 protected:
  // Puts every operation through its paces, and looks at the context after each step.
  void expect_unchanged() {
    const CUcontext before = driver().current();
    for (const Operation &operation : operations()) {
      if (!possible(backend(), operation)) continue;
      SCOPED_TRACE(operation.name);
      World world;
      world.backend = &backend();
      ASSERT_OK(operation.prepare(world));
      ASSERT_EQ(driver().current(), before);
      ASSERT_OK(operation.run(world));
      ASSERT_EQ(driver().current(), before);
      ASSERT_OK(operation.undo(world));
      ASSERT_EQ(driver().current(), before);
    }
  }
  CUcontext retain(int device) {
    CUcontext context = nullptr;
    EXPECT_EQ(driver().cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    return context;
  }
  void release(int device) { EXPECT_EQ(driver().cuDevicePrimaryCtxRelease_v2(device), CUDA_SUCCESS); }
  CUcontext pop() {
    CUcontext context = nullptr;
    EXPECT_EQ(driver().cuCtxPopCurrent_v2(&context), CUDA_SUCCESS);
    return context;
  }
};

TEST_F(CudaContext, ThreadWithNoneHasNoneAfterwards) {
  std::thread thread([this] {
    ASSERT_EQ(driver().current(), nullptr);
    expect_unchanged();
  });
  thread.join();
}

TEST_F(CudaContext, ThreadWithTheDevicesKeepsIt) {
  const CUcontext own = retain(0);
  ASSERT_EQ(driver().cuCtxPushCurrent_v2(own), CUDA_SUCCESS);
  expect_unchanged();
  EXPECT_EQ(pop(), own);
  EXPECT_EQ(driver().current(), nullptr);
  release(0);
}

TEST_F(CudaContext, ThreadWithAnotherDevicesKeepsItAndTheOnesBelow) {
  if (backend().device_count() < 2) GTEST_SKIP() << "one device";
  const CUcontext first = retain(0), other = retain(1);
  for (CUcontext each : {other, first, other}) ASSERT_EQ(driver().cuCtxPushCurrent_v2(each), CUDA_SUCCESS);
  expect_unchanged();
  for (CUcontext each : {other, first, other}) EXPECT_EQ(pop(), each);
  EXPECT_EQ(driver().current(), nullptr);
  release(0);
  release(1);
}

TEST_F(CudaContext, OperationsReachTheDeviceThatIsAskedFor) {
  if (backend().device_count() < 2) GTEST_SKIP() << "one device";
  const CUcontext first = retain(0);
  ASSERT_EQ(driver().cuCtxPushCurrent_v2(first), CUDA_SUCCESS);
  Allocation allocation;
  ASSERT_OK(backend().allocate(Kind::kDevice, Device{1}, kUnit, &allocation));
  ForeignPointer seen;
  backend().identify(allocation.base, &seen);
  EXPECT_TRUE(seen.known);
  EXPECT_EQ(seen.device, Device{1});
  gmm_stream stream = nullptr;
  ASSERT_OK(backend().stream_create(Device{1}, 0, &stream));
  ASSERT_OK(backend().fill(Device{1}, stream, allocation.base, 7, kUnit));
  EXPECT_OK(backend().stream_destroy(stream));
  EXPECT_OK(backend().deallocate(allocation));
  EXPECT_EQ(pop(), first);
  release(0);
}

TEST_F(CudaContext, DevicesAreStartedWhenTheyAreNeeded) {
  if (!driver().is_fake()) GTEST_SKIP() << "needs the fake driver";
  const uint64_t before = driver().live().context_references;
  void *base = nullptr;
  ASSERT_OK(backend().reserve(kUnit, &base));
  EXPECT_OK(backend().unreserve(base, kUnit));
  EXPECT_EQ(driver().live().context_references, before) << "addresses need no device";
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([this] {
      Allocation allocation;
      ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &allocation));
      EXPECT_OK(backend().deallocate(allocation));
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(driver().live().context_references, before + 1) << "retained once";
  backend().destroy();
  backend_ = nullptr;
  EXPECT_EQ(driver().live().context_references, before) << "released by destroy()";
}

// Such a context is none that makes the device started. Its default stream is the one that the caller means.
TEST_F(CudaContext, TheDefaultStreamOfTheCallersOwnContextIsWaitedFor) {
  CUcontext own = nullptr;
  ASSERT_EQ(driver().cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
  for (gmm_stream stream : {GMM_STREAM_DEFAULT, GMM_STREAM_PER_THREAD}) {
    std::atomic<bool> is_done{false};
    const auto work = [](void *done) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      static_cast<std::atomic<bool> *>(done)->store(true);
    };
    ASSERT_OK(backend().stream_call(kFirst, stream, work, &is_done));
    EXPECT_OK(backend().stream_synchronize(kFirst, stream));
    EXPECT_TRUE(is_done);
    while (!is_done) std::this_thread::yield();
  }
  EXPECT_EQ(driver().cuCtxDestroy_v2(own), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gmm::test
