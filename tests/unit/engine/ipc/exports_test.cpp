// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/exports.h"

#include "engine/ipc/two_contexts.h"

namespace gmm {
namespace {

class IpcExportsTest : public test::TwoContextsTest {};

TEST_F(IpcExportsTest, ABlockHasOneExportAndItsExtentsOneToken) {
  void *first = allocate(4096), *second = allocate(4096), *other = allocate(8 << 20, GMM_ALLOC_DEDICATED);
  const gmm_ipc_handle bytes = export_bytes(first), again = export_bytes(first);
  EXPECT_EQ(std::memcmp(&bytes, &again, sizeof bytes), 0);
  const IpcHandle a = decode(bytes), b = decode(export_bytes(second)), c = decode(export_bytes(other));
  EXPECT_NE(a.allocation, b.allocation);
  EXPECT_EQ(std::memcmp(a.token, b.token, sizeof a.token), 0);
  EXPECT_NE(std::memcmp(a.token, c.token, sizeof a.token), 0);
  EXPECT_EQ(decode(export_bytes(static_cast<char *>(first) + 100)).offset, a.offset + 100);
  for (void *memory : {first, second, other}) free_block(memory);
}

TEST_F(IpcExportsTest, EachGrantIsCountedOnTheExtent) {
  void *memory = allocate(4096);
  const IpcHandle handle = decode(export_bytes(memory));
  IpcExports &exports = exporter_->ipc.exports;
  IpcGrant counted, opened;
  opened.wants_fd = true;
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &counted).ok()) << last_message();
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &opened).ok()) << last_message();
  EXPECT_EQ(counted.fd, -1);
  EXPECT_GE(opened.fd, 0);
  EXPECT_EQ(opened.allocation_size, handle.allocation_size);
  EXPECT_EQ(opened.generation, handle.generation);
  EXPECT_EQ(importers_of(memory), 2u);
  exports.importer_gone(handle.allocation);
  exports.importer_gone(handle.allocation);
  EXPECT_EQ(importers_of(memory), 0u);
  ::close(opened.fd);
  free_block(memory);
}

TEST_F(IpcExportsTest, OnlyAnExportThatLivesIsGranted) {
  void *memory = allocate(4096);
  const IpcHandle handle = decode(export_bytes(memory));
  IpcExports &exports = exporter_->ipc.exports;
  IpcGrant grant;
  uint8_t wrong[kIpcTokenSize];
  std::memcpy(wrong, handle.token, sizeof wrong);
  wrong[15] ^= 1;
  EXPECT_EQ(exports.grant(handle.allocation, wrong, &grant).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_EQ(exports.grant(handle.allocation + 1, handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(exports.grant(ipc_piece_id(handle.allocation, 1), handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  free_block(memory);
  EXPECT_EQ(exports.grant(handle.allocation, handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(grant.fd, -1);
}

TEST_F(IpcExportsTest, AHandleOfThisContextGivesTheOriginalMemory) {
  char *memory = static_cast<char *>(allocate(4096));
  const IpcHandle handle = decode(export_bytes(memory + 7));
  IpcExports &exports = exporter_->ipc.exports;
  void *found = nullptr;
  EXPECT_EQ(exports.close_own(memory).code(), GMM_ERROR_UNBALANCED);
  ASSERT_TRUE(exports.import_own(handle, &found).ok()) << last_message();
  EXPECT_EQ(found, memory + 7);
  EXPECT_TRUE(exports.close_own(memory).ok()) << last_message();
  EXPECT_EQ(exports.close_own(memory).code(), GMM_ERROR_UNBALANCED);
  free_block(memory);
  EXPECT_EQ(exports.import_own(handle, &found).code(), GMM_ERROR_IPC_PEER_GONE);
}

// Past 64 exports, those of freed memory are removed. The others stay in order, so each is found.
TEST_F(IpcExportsTest, ExportsOfFreedMemoryGiveWay) {
  constexpr int kCount = 300;
  void *blocks[kCount];
  IpcHandle handles[kCount];
  for (int i = 0; i < kCount; ++i) {
    blocks[i] = allocate(4096);
    handles[i] = decode(export_bytes(blocks[i]));
    if (i % 3 != 0) free_block(blocks[i]);
  }
  IpcExports &exports = exporter_->ipc.exports;
  for (int i = 0; i < kCount; i += 3) {
    void *found = nullptr;
    ASSERT_TRUE(exports.import_own(handles[i], &found).ok()) << i << ": " << last_message();
    EXPECT_EQ(found, blocks[i]);
    EXPECT_TRUE(exports.close_own(blocks[i]).ok());
    free_block(blocks[i]);
  }
}

}  // namespace
}  // namespace gmm
