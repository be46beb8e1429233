// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/staging.h"

#include <sys/mman.h>

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

TEST(StagingBuffer, TheDeviceSeesIt) {
  Engine engine;
  engine.backend->pose_as(GMM_BACKEND_CUDA);
  StagingBuffer buffer(engine.core);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.close(), 0u);
  ASSERT_TRUE(buffer.open(Device{0}, 3 * kMiB).ok()) << last_message();
  EXPECT_EQ(buffer.device_data(), buffer.data());
  std::memset(buffer.data(), 1, 3 * kMiB);
  char *data = buffer.data();
  ASSERT_TRUE(buffer.open(Device{0}, 9 * kMiB).ok());
  EXPECT_EQ(buffer.data(), data) << "an open buffer stays as it is";
  EXPECT_EQ(engine.backend->count("pin"), 1u);
  EXPECT_EQ(buffer.close(), 4 * kMiB) << "whole huge pages";
  EXPECT_EQ(engine.backend->count("unpin"), 1u);
  EXPECT_EQ(buffer.data(), nullptr);
}

TEST(StagingBuffer, TheHostBackendNeedsNoLock) {
  Engine engine;
  StagingBuffer buffer(engine.core);
  ASSERT_TRUE(buffer.open(Device{0}, kMiB).ok()) << last_message();
  EXPECT_EQ(buffer.device_data(), buffer.data());
  buffer.close();
  EXPECT_EQ(engine.backend->count("pin") + engine.backend->count("unpin"), 0u);
}

TEST(StagingBuffer, StaysPageableWhereTheDriverRefuses) {
  Engine engine;
  engine.backend->pose_as(GMM_BACKEND_CUDA);
  StagingBuffer buffer(engine.core);
  engine.backend->refuse(1, "pin");
  ASSERT_TRUE(buffer.open(Device{0}, kMiB).ok()) << last_message();
  EXPECT_EQ(buffer.device_data(), nullptr);
  std::memset(buffer.data(), 1, kMiB);
  EXPECT_EQ(buffer.close(), 2 * kMiB);
  EXPECT_EQ(engine.backend->count("unpin"), 0u);
}

TEST(StagingBuffer, ARefusedUnlockIsOfferedAgain) {
  Engine engine;
  engine.backend->pose_as(GMM_BACKEND_CUDA);
  StagingBuffer buffer(engine.core);
  ASSERT_TRUE(buffer.open(Device{0}, kMiB).ok()) << last_message();
  char *data = buffer.data();
  engine.backend->refuse(1, "unpin");
  buffer.close();
  *data = 1;  // the pages stay with the driver
  engine.core.deferred_release.retry(*engine.backend);
  EXPECT_EQ(engine.backend->count("unpin"), 1u);
}

TEST(StagingBuffer, AbandonedMemoryStays) {
  Engine engine;
  engine.backend->pose_as(GMM_BACKEND_CUDA);
  StagingBuffer buffer(engine.core);
  ASSERT_TRUE(buffer.open(Device{0}, 2 * kMiB).ok()) << last_message();
  char *data = buffer.data();
  buffer.abandon();
  EXPECT_EQ(buffer.close(), 0u);
  EXPECT_EQ(engine.backend->count("unpin"), 0u);
  std::memset(data, 1, 2 * kMiB);  // as a late copy of the device would
  munmap(data, 2 * kMiB);
}

}  // namespace
}  // namespace gmm::test
