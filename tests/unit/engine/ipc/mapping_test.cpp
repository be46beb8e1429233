// SPDX-License-Identifier: Apache-2.0
// The backend of a mapping refuses its calls one by one.
#include "engine/ipc/mapping.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/failing_backend.h"
#include "engine/ipc/test_support.h"

namespace gmm {
namespace {

class IpcMappingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Backend *host = nullptr;
    ASSERT_TRUE(
        host_backend_create(HostAllocator(), Log(nullptr, nullptr), HostBackendOptions{1 << 30, 1}, &host).ok());
    backend_ = std::make_unique<test::FailingBackend>(host);
    file_ = ::memfd_create("mapped", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(::ftruncate(file_, kSize), 0);
    ASSERT_EQ(::fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    descriptors_ = test::open_descriptors();
  }
  void TearDown() override {
    EXPECT_EQ(test::open_descriptors(), descriptors_) << "a descriptor was left open";
    ::close(file_);
    backend_->destroy();
  }
  static constexpr uint64_t kSize = 4 << 20;

  std::unique_ptr<test::FailingBackend> backend_;
  int file_ = -1;
  int descriptors_ = 0;
};

TEST_F(IpcMappingTest, AFailureIsUndoneWhereverItComes) {
  for (const gmm_fd_type type : {GMM_FD_OPAQUE, GMM_FD_FILE}) {
    int failures = 0;
    for (uint64_t k = 1;; ++k) {
      IpcMapping mapping(*backend_, Device{0});
      backend_->refuse(k);
      const Status status = mapping.map_descriptor(file_, type, kSize);
      const bool refused = backend_->refused() != 0;
      backend_->refuse(0);
      EXPECT_EQ(status.ok(), !refused);
      if (status.ok()) mapping.base()[kSize - 1] = 'x';
      EXPECT_TRUE(mapping.unmap().ok()) << last_message();
      EXPECT_EQ(mapping.base(), nullptr);
      if (!refused) break;
      ++failures;
    }
    EXPECT_EQ(failures, type == GMM_FD_OPAQUE ? 4 : 1);
  }
}

TEST_F(IpcMappingTest, ARefusedUnmapGoesOnWhereItStopped) {
  uint64_t k = 1;
  for (bool refused = true; refused; ++k) {
    IpcMapping mapping(*backend_, Device{0});
    ASSERT_TRUE(mapping.map_descriptor(file_, GMM_FD_OPAQUE, kSize).ok()) << last_message();
    backend_->refuse(k);
    const Status status = mapping.unmap();
    refused = backend_->refused() != 0;
    backend_->refuse(0);
    EXPECT_EQ(status.ok(), !refused);
    EXPECT_TRUE(mapping.unmap().ok()) << last_message();
    EXPECT_EQ(mapping.base(), nullptr);
  }
  EXPECT_EQ(k, 5u) << "unmap, release and unreserve can fail";
}

TEST_F(IpcMappingTest, NoHandleMeansTheMappingOfADescriptor) {
  IpcMapping mapping(*backend_, Device{0});
  ASSERT_TRUE(mapping.map_descriptor(file_, GMM_FD_FILE, kSize).ok()) << last_message();
  IpcHandle handle;
  handle.exporter.pid = 1;
  EXPECT_FALSE(mapping.is_of(handle, Device{0}));
  EXPECT_TRUE(mapping.contains(mapping.base() + kSize - 1));
  EXPECT_FALSE(mapping.contains(mapping.base() + kSize));
  EXPECT_FALSE(mapping.contains(mapping.base() - 1));
  EXPECT_TRUE(mapping.unmap().ok());
}

TEST_F(IpcMappingTest, AFailedImportOfManyExtentsIsUndone) {
  test::Exporter exporter;
  exporter.extents = 10;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  ASSERT_EQ(::fcntl(exporter.memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  for (const uint64_t k : {1, 2, 3, 12, 21, 22, 0}) {
    IpcMapping mapping(*backend_, Device{0}, exporter.handle);
    backend_->refuse(k);
    const Status status = mapping.map_handle(test::kPatience, kIpcDefaultPolicy);
    EXPECT_EQ(status.ok(), k == 0) << k << ": " << last_message();
    backend_->refuse(0);
    if (status.ok()) mapping.base()[10 * test::kSize - 1] = 'x';
    EXPECT_TRUE(mapping.unmap().ok()) << last_message();
  }
  EXPECT_TRUE(test::eventually([&] { return exporter.importers == 0; }));
  exporter.broker.stop();
}

}  // namespace
}  // namespace gmm
