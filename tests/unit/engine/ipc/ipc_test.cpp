// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/ipc.h"

#include "engine/ipc/two_contexts.h"

namespace gmm {
namespace {

class IpcTest : public test::TwoContextsTest {};

TEST_F(IpcTest, ThePolicyIsFixedByTheFirstUse) {
  IpcPolicy policy;
  EXPECT_TRUE(exporter_->ipc.configure(policy).ok());
  EXPECT_TRUE(importer_->ipc.configure(policy).ok());
  void *memory = allocate(4096);
  void *imported = import(export_bytes(memory));
  EXPECT_EQ(exporter_->ipc.configure(policy).code(), GMM_ERROR_BUSY);
  EXPECT_EQ(importer_->ipc.configure(policy).code(), GMM_ERROR_BUSY);
  EXPECT_TRUE(importer_->ipc.close(imported).ok());
  free_block(memory);
}

// Each context says once that GMM_IPC_DIR counts as not set. Both use the next directory, so they still share.
TEST_F(IpcTest, AnIgnoredDirectoryIsToldOnce) {
  const char *old = ::getenv("XDG_RUNTIME_DIR");
  const std::string saved = old == nullptr ? "" : old;
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  ::setenv("GMM_IPC_DIR", "relative/sockets", 1);
  void *memory = allocate(4096);
  const gmm_ipc_handle bytes = export_bytes(memory);
  EXPECT_EQ(journal_.count("GMM_IPC_DIR counts as not set, because it is not an absolute path"), 1);
  EXPECT_NE(::access("relative", F_OK), 0);
  for (int i = 0; i < 3; ++i) {
    export_bytes(memory);
    EXPECT_TRUE(importer_->ipc.close(import(bytes)).ok());
  }
  EXPECT_EQ(journal_.count("GMM_IPC_DIR"), 2);
  free_block(memory);
  gmm_context_release(importer_);
  gmm_context_release(exporter_);
  importer_ = exporter_ = nullptr;
  EXPECT_EQ(::rmdir((directory_ + "/gmm").c_str()), 0) << std::strerror(errno);
  old == nullptr ? ::unsetenv("XDG_RUNTIME_DIR") : ::setenv("XDG_RUNTIME_DIR", saved.c_str(), 1);
}

TEST_F(IpcTest, OwnHandlesAndOthersTakeTheirOwnWays) {
  void *memory = allocate(4096), *own = nullptr, *other = nullptr;
  const gmm_ipc_handle bytes = export_bytes(memory);
  ASSERT_TRUE(exporter_->ipc.import_block(bytes, Device{0}, test::kPatience, &own).ok()) << last_message();
  EXPECT_EQ(own, memory);
  EXPECT_EQ(importers_of(memory), 1u);
  ASSERT_TRUE(importer_->ipc.import_block(bytes, Device{0}, test::kPatience, &other).ok()) << last_message();
  EXPECT_NE(other, memory);
  EXPECT_EQ(importers_of(memory), 2u);
  EXPECT_TRUE(exporter_->ipc.close(own).ok());
  EXPECT_TRUE(importer_->ipc.close(other).ok());
  EXPECT_EQ(exporter_->ipc.close(own).code(), GMM_ERROR_UNBALANCED);
  EXPECT_EQ(importer_->ipc.close(other).code(), GMM_ERROR_UNKNOWN_POINTER);
  free_block(memory);
}

TEST_F(IpcTest, EventsAndExportsTakeTheirIdsFromOneSequence) {
  SharedEvent *event = nullptr;
  ASSERT_TRUE(exporter_->ipc.events.create(Device{0}, &event).ok());
  void *memory = allocate(4096);
  gmm_ipc_handle event_bytes;
  ASSERT_TRUE(exporter_->ipc.events.export_event(*event, &event_bytes).ok());
  const gmm_ipc_handle memory_bytes = export_bytes(memory);
  EXPECT_NE(decode(event_bytes).allocation, decode(memory_bytes).allocation);
  void *imported = nullptr;
  EXPECT_EQ(importer_->ipc.import_block(event_bytes, Device{0}, test::kPatience, &imported).code(),
            GMM_ERROR_IPC_INVALID_HANDLE);
  EXPECT_TRUE(exporter_->ipc.events.destroy(event).ok());
  free_block(memory);
}

}  // namespace
}  // namespace gmm
