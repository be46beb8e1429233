// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/exports.h"

#include <thread>

#include "engine/ipc/two_contexts.h"

namespace gmm {
namespace {

class IpcExportsTest : public test::TwoContextsTest {};

TEST_F(IpcExportsTest, ABlockHasOneExportAndOneToken) {
  void *first = allocate(4096), *second = allocate(4096), *other = allocate(8 << 20, GMM_ALLOC_DEDICATED);
  const gmm_ipc_handle bytes = export_bytes(first), again = export_bytes(first);
  EXPECT_EQ(std::memcmp(&bytes, &again, sizeof bytes), 0);
  const IpcHandle a = decode(bytes), b = decode(export_bytes(second)), c = decode(export_bytes(other));
  EXPECT_NE(a.allocation, b.allocation);
  // Tokens of the same extents begin alike, and the rest is the block's own.
  const uint64_t start = kIpcExtentsTokenSize, rest = kIpcTokenSize - start;
  EXPECT_EQ(std::memcmp(a.token, b.token, start), 0);
  EXPECT_NE(std::memcmp(a.token + start, b.token + start, rest), 0);
  EXPECT_NE(std::memcmp(a.token, c.token, start), 0);
  EXPECT_NE(std::memcmp(a.token + start, c.token + start, rest), 0);
  EXPECT_EQ(decode(export_bytes(static_cast<char *>(first) + 100)).offset, a.offset + 100);
  for (void *memory : {first, second, other}) free_block(memory);
}

TEST_F(IpcExportsTest, EachGrantIsCountedOnTheExtent) {
  void *memory = allocate(4096);
  const IpcHandle handle = decode(export_bytes(memory));
  IpcExports &exports = exporter_->ipc().exports;
  IpcGrant counted, opened;
  opened.wants_fds = true;
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &counted).ok()) << last_message();
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &opened).ok()) << last_message();
  EXPECT_EQ(counted.extents, 0u);
  EXPECT_EQ(opened.extents, 1u);
  EXPECT_EQ(opened.allocation_size, handle.allocation_size);
  EXPECT_EQ(opened.generation, handle.generation);
  EXPECT_EQ(importers_of(memory), 2u);
  exports.importer_gone(handle.allocation);
  exports.importer_gone(handle.allocation);
  EXPECT_EQ(importers_of(memory), 0u);
  ::close(opened.fds[0]);
  free_block(memory);
}

TEST_F(IpcExportsTest, OnlyAnExportThatLivesIsGranted) {
  void *memory = allocate(4096);
  const IpcHandle handle = decode(export_bytes(memory));
  IpcExports &exports = exporter_->ipc().exports;
  IpcGrant grant;
  uint8_t wrong[kIpcTokenSize];
  std::memcpy(wrong, handle.token, sizeof wrong);
  wrong[15] ^= 1;
  EXPECT_EQ(exports.grant(handle.allocation, wrong, &grant).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_EQ(exports.grant(handle.allocation + 1, handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  free_block(memory);
  EXPECT_EQ(exports.grant(handle.allocation, handle.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(grant.extents, 0u);
}

TEST_F(IpcExportsTest, AHandleOfThisContextGivesTheOriginalMemory) {
  char *memory = static_cast<char *>(allocate(4096));
  const IpcHandle handle = decode(export_bytes(memory + 7));
  IpcExports &exports = exporter_->ipc().exports;
  void *found = nullptr;
  EXPECT_EQ(exports.close_own(memory).code(), GMM_ERROR_UNBALANCED);
  ASSERT_TRUE(exports.import_own(handle, &found).ok()) << last_message();
  EXPECT_EQ(found, memory + 7);
  EXPECT_TRUE(exports.close_own(memory).ok()) << last_message();
  EXPECT_EQ(exports.close_own(memory).code(), GMM_ERROR_UNBALANCED);
  free_block(memory);
  EXPECT_EQ(exports.import_own(handle, &found).code(), GMM_ERROR_IPC_PEER_GONE);
}

// Where blocks come and go extents are small, so that a large block lies over many.
TEST_F(IpcExportsTest, ABlockOverManyExtentsIsShared) {
  free_block(allocate(4096));
  constexpr uint64_t kSize = uint64_t{60} << 20;
  char *memory = static_cast<char *>(allocate(kSize));
  std::memset(memory, 7, kSize);
  const gmm_ipc_handle bytes = export_bytes(memory);
  const IpcHandle handle = decode(bytes);
  const char *there = static_cast<const char *>(import(bytes));
  ASSERT_NE(there, nullptr);
  EXPECT_EQ(there[0] + there[kSize / 2] + there[kSize - 1], 21);
  IpcExports &exports = exporter_->ipc().exports;
  IpcGrant grant;
  grant.counts = false;
  grant.wants_fds = true;
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &grant).ok()) << last_message();
  EXPECT_GT(grant.extents, 16u);
  for (uint32_t i = 0; i < grant.extents; ++i) ::close(grant.fds[i]);
  const gmm_ipc_handle again = export_bytes(memory);
  EXPECT_EQ(std::memcmp(&bytes, &again, sizeof bytes), 0);
  EXPECT_TRUE(importer_->ipc().close(const_cast<char *>(there)).ok()) << last_message();
  free_block(memory);
  grant = IpcGrant();
  EXPECT_FALSE(exports.grant(handle.allocation, handle.token, &grant).ok());
}

// A block at the address of a freed one has a token of its own, so the old handle names nothing.
TEST_F(IpcExportsTest, ATokenEndsWithItsBlock) {
  void *keeps_the_extent = allocate(4096), *memory = allocate(4096);
  const IpcHandle before = decode(export_bytes(memory));
  free_block(memory);
  void *again = allocate(4096);
  ASSERT_EQ(again, memory);
  const IpcHandle after = decode(export_bytes(again));
  EXPECT_EQ(std::memcmp(before.token, after.token, kIpcExtentsTokenSize), 0);
  EXPECT_NE(std::memcmp(before.token, after.token, kIpcTokenSize), 0);
  IpcExports &exports = exporter_->ipc().exports;
  IpcGrant grant, check;
  check.counts = false;
  EXPECT_EQ(exports.grant(before.allocation, before.token, &grant).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(exports.grant(before.allocation, before.token, &check).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(exports.grant(after.allocation, before.token, &check).code(), GMM_ERROR_IPC_REFUSED);
  ASSERT_TRUE(exports.grant(after.allocation, after.token, &check).ok()) << last_message();
  EXPECT_EQ(check.allocation_size, after.allocation_size);
  EXPECT_EQ(importers_of(again), 0u) << "a check counts nobody";
  free_block(again);
  free_block(keeps_the_extent);
}

// The broker's thread must not wait while a pause holds a heap.
TEST_F(IpcExportsTest, ALockedHeapIsBusyAndCaughtUpLater) {
  void *memory = allocate(4 << 20);
  const IpcHandle handle = decode(export_bytes(memory));
  IpcExports &exports = exporter_->ipc().exports;
  IpcGrant grant;
  ASSERT_TRUE(exports.grant(handle.allocation, handle.token, &grant).ok()) << last_message();
  Block block;
  ASSERT_TRUE(find_block(exporter_->core(), memory, &block));
  free_block(memory);
  EXPECT_EQ(block.extent->importers.load(), 1u);
  const auto can_be_released = [&] {
    uint64_t bytes = 0;
    EXPECT_TRUE(block.heap->reclaim().release(UINT64_MAX, true, &bytes).ok());
    return bytes;
  };
  EXPECT_EQ(can_be_released(), 0u);
  void *other = allocate(4096);
  const IpcHandle other_handle = decode(export_bytes(other));
  block.heap->lock_for_operation();
  std::thread([&] {  // the broker's
    EXPECT_EQ(exports.grant(other_handle.allocation, other_handle.token, &grant).code(), GMM_ERROR_BUSY);
    exports.importer_gone(handle.allocation);
    EXPECT_TRUE(exports.catch_up());
  })
      .join();
  block.heap->mutex.unlock();
  EXPECT_FALSE(exports.catch_up());
  EXPECT_GE(can_be_released(), uint64_t{4} << 20);
  ASSERT_TRUE(exports.grant(other_handle.allocation, other_handle.token, &grant).ok()) << last_message();
  block.heap->lock_for_operation();
  std::thread([&] {
    exports.importer_gone(other_handle.allocation);
    EXPECT_TRUE(exports.catch_up());
  }).join();
  block.heap->mutex.unlock();
  EXPECT_FALSE(exports.catch_up());
  free_block(other);
}

TEST_F(IpcExportsTest, AnOwnImportKeepsTheMemoryOfAFreedBlock) {
  auto *memory = static_cast<char *>(allocate(4 << 20));
  const IpcHandle handle = decode(export_bytes(memory + 7));
  IpcExports &exports = exporter_->ipc().exports;
  void *found = nullptr, *more = nullptr;
  ASSERT_TRUE(exports.import_own(handle, &found).ok()) << last_message();
  ASSERT_TRUE(exports.import_own(handle, &more).ok()) << last_message();
  EXPECT_EQ(importers_of(memory), 1u);
  Block block;
  ASSERT_TRUE(find_block(exporter_->core(), memory, &block));
  EXPECT_EQ(other_importers(*block.extent), 0u) << "it is not in the way of a pause";
  free_block(memory);
  Range range;
  ASSERT_TRUE(exports.find_own(memory + (4 << 20) - 1, &range));
  EXPECT_EQ(range.base, reinterpret_cast<uint64_t>(memory));
  EXPECT_EQ(range.size, uint64_t{4} << 20);
  EXPECT_EQ(IpcImports::kind(range), Kind::kVmm);
  EXPECT_EQ(exports.import_own(handle, &found).code(), GMM_ERROR_IPC_PEER_GONE) << "the handle ended with the block";
  for (int i = 0; i < 100; ++i) free_block(allocate(4 << 20));
  memory[5] = 'x';
  EXPECT_TRUE(exports.close_own(memory + 100).ok()) << last_message();
  EXPECT_EQ(block.extent->importers.load(), 1u);
  EXPECT_TRUE(exports.close_own(memory).ok()) << last_message();
  EXPECT_EQ(block.extent->importers.load(), 0u);
  EXPECT_FALSE(exports.find_own(memory, &range));
  EXPECT_EQ(exports.close_own(memory).code(), GMM_ERROR_ALREADY_FREED);
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
  IpcExports &exports = exporter_->ipc().exports;
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
