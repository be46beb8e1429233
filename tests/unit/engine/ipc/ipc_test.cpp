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

TEST_F(IpcTest, OwnHandlesAndOthersTakeTheirOwnWays) {
  void *memory = allocate(4096), *own = nullptr, *other = nullptr;
  const gmm_ipc_handle bytes = export_bytes(memory);
  ASSERT_TRUE(exporter_->ipc.import_block(bytes, Device{0}, test::kPatience, &own).ok()) << last_message();
  EXPECT_EQ(own, memory);
  EXPECT_EQ(importers_of(memory), 0u);
  ASSERT_TRUE(importer_->ipc.import_block(bytes, Device{0}, test::kPatience, &other).ok()) << last_message();
  EXPECT_NE(other, memory);
  EXPECT_EQ(importers_of(memory), 1u);
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
  IpcHandle piece = decode(memory_bytes);
  piece.allocation = ipc_piece_id(piece.allocation, 1);
  gmm_ipc_handle piece_bytes;
  ipc_handle_encode(piece, &piece_bytes);
  EXPECT_EQ(importer_->ipc.import_block(piece_bytes, Device{0}, test::kPatience, &imported).code(),
            GMM_ERROR_IPC_INVALID_HANDLE);
  EXPECT_TRUE(exporter_->ipc.events.destroy(event).ok());
  free_block(memory);
}

}  // namespace
}  // namespace gmm
