// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/imports.h"

#include <thread>
#include <utility>
#include <vector>

#include "engine/ipc/two_contexts.h"

namespace gmm {
namespace {

class IpcImportsTest : public test::TwoContextsTest {};

TEST_F(IpcImportsTest, ImportsOfTheSameExtentsShareOneMapping) {
  void *first = allocate(4096), *second = allocate(4096);
  const gmm_ipc_handle bytes = export_bytes(first);
  const uint64_t size = decode(bytes).allocation_size;
  IpcImports &imports = importer_->ipc.imports;
  void *a = import(bytes), *b = import(export_bytes(second));
  EXPECT_EQ(imports.bytes(), size);
  EXPECT_EQ(importers_of(first), 1u);
  static_cast<char *>(first)[5] = 'x';
  EXPECT_EQ(static_cast<char *>(a)[5], 'x');
  bool found = false;
  EXPECT_TRUE(imports.close(a, &found).ok());
  EXPECT_TRUE(found);
  EXPECT_EQ(imports.bytes(), size);
  EXPECT_TRUE(imports.close(b, &found).ok());
  EXPECT_EQ(imports.bytes(), 0u);
  EXPECT_TRUE(imports.close(b, &found).ok());
  EXPECT_FALSE(found);
  EXPECT_TRUE(test::eventually([&] { return importers_of(first) == 0; }));
  free_block(first);
  free_block(second);
}

// The handle of a freed block names nothing, although its bytes are mapped for another block.
TEST_F(IpcImportsTest, AFurtherBlockOfAMappingIsChecked) {
  auto *first = static_cast<char *>(allocate(4096)), *second = static_cast<char *>(allocate(4096));
  const gmm_ipc_handle stale = export_bytes(second);
  free_block(second);
  auto *third = static_cast<char *>(allocate(4096));
  ASSERT_EQ(third, second);
  third[0] = 't';
  void *a = import(export_bytes(first)), *b = nullptr;
  EXPECT_EQ(importer_->ipc.import_block(stale, Device{0}, test::kPatience, &b).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(b, nullptr);
  b = import(export_bytes(third));
  EXPECT_EQ(*static_cast<char *>(b), 't');
  EXPECT_EQ(importers_of(first), 1u) << "one connection holds the extent";
  // An import that is open keeps its bytes, so its handle is good for another import even after the free.
  const gmm_ipc_handle open = export_bytes(third);
  free_block(third);
  EXPECT_EQ(import(open), b);
  EXPECT_EQ(*static_cast<char *>(b), 't');
  IpcImports &imports = importer_->ipc.imports;
  bool found = false;
  EXPECT_TRUE(imports.close(b, &found).ok() && found);
  EXPECT_TRUE(imports.close(b, &found).ok() && found);
  EXPECT_EQ(imports.close(b, &found).code(), GMM_ERROR_UNBALANCED);
  EXPECT_EQ(importer_->ipc.import_block(open, Device{0}, test::kPatience, &b).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_TRUE(imports.close(a, &found).ok() && found);
  EXPECT_EQ(imports.bytes(), 0u);
  free_block(first);
}

TEST_F(IpcImportsTest, OperandsEndWithTheImportedBlock) {
  auto *first = static_cast<char *>(allocate(5000));
  void *neighbour = allocate(5000);
  const IpcImports &imports = importer_->ipc.imports;
  auto *memory = static_cast<char *>(import(export_bytes(first + 100)));
  Range range;
  ASSERT_TRUE(imports.find(memory, &range));
  EXPECT_TRUE(imports.check_operand(range, memory, 4900, "test").ok());
  EXPECT_TRUE(imports.check_operand(range, memory - 100, 5000, "test").ok());
  EXPECT_TRUE(imports.check_operand(range, memory + 4899, 1, "test").ok());
  for (const auto &[offset, size] :
       {std::pair<int64_t, uint64_t>{0, 4901}, {-100, 5001}, {4899, 2}, {0, UINT64_MAX}, {4900, 1}, {-101, 1}})
    EXPECT_EQ(imports.check_operand(range, memory + offset, size, "test").code(), GMM_ERROR_INVALID_SIZE) << offset;
  Range block;
  ASSERT_TRUE(imports.find_block(memory, &block));
  EXPECT_EQ(block.size, 5000u);
  EXPECT_EQ(block.base, reinterpret_cast<uint64_t>(memory) - 100);
  bool found = false;
  EXPECT_TRUE(importer_->ipc.imports.close(memory, &found).ok());
  free_block(neighbour);
  free_block(first);
}

// Threads that import and close the same memory at once share the mapping, or make it anew.
TEST_F(IpcImportsTest, ThreadsShareMappings) {
  constexpr int kThreads = 4, kRounds = 200, kBlocks = 3;
  auto *first = static_cast<char *>(allocate(4096));
  void *blocks[kBlocks] = {first, allocate(4096), allocate(4096)};
  gmm_ipc_handle handles[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    *static_cast<char *>(blocks[i]) = static_cast<char>('a' + i);
    handles[i] = export_bytes(blocks[i]);
  }
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const int which = (t + i) % kBlocks;
        void *memory = nullptr;
        if (!importer_->ipc.import_block(handles[which], Device{0}, test::kPatience, &memory).ok() ||
            *static_cast<char *>(memory) != 'a' + which || !importer_->ipc.close(memory).ok())
          ++failures;
      }
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(importer_->ipc.imports.bytes(), 0u);
  EXPECT_TRUE(test::eventually([&] { return importers_of(first) == 0; }));
  for (void *block : blocks) free_block(block);
}

TEST_F(IpcImportsTest, AMappingIsFoundByEveryAddressInside) {
  void *memory = allocate(4096);
  const gmm_ipc_handle bytes = export_bytes(memory);
  IpcImports &imports = importer_->ipc.imports;
  void *imported = import(bytes);
  Range range;
  ASSERT_TRUE(imports.find(imported, &range));
  EXPECT_EQ(IpcImports::kind(range), Kind::kVmm);
  EXPECT_EQ(IpcImports::device(range).ordinal, 0);
  EXPECT_EQ(IpcImports::state(range), PeerState::kAlive);
  EXPECT_TRUE(IpcImports::check(range, imported, "test").ok());
  Range last;
  EXPECT_TRUE(imports.find(reinterpret_cast<void *>(range.base + range.size - 1), &last));
  EXPECT_FALSE(imports.find(reinterpret_cast<void *>(range.base + range.size), &last));
  // The end of the exporter is seen, and VMM memory outlives it.
  gmm_context_release(exporter_);
  exporter_ = nullptr;
  EXPECT_EQ(IpcImports::state(range), PeerState::kGone);
  EXPECT_TRUE(IpcImports::check(range, imported, "test").ok());
  bool found = false;
  EXPECT_TRUE(imports.close(imported, &found).ok());
  EXPECT_FALSE(imports.find(imported, &range));
  exporter_ = make_context();
}

TEST_F(IpcImportsTest, EachImportOfADescriptorIsAMapping) {
  const int file = ::memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(file, 8192), 0);
  IpcImports &imports = importer_->ipc.imports;
  void *a = nullptr, *b = nullptr;
  ASSERT_TRUE(imports.import_descriptor(file, GMM_FD_DEFAULT, 8192, Device{0}, &a).ok()) << last_message();
  ASSERT_TRUE(imports.import_descriptor(file, GMM_FD_FILE, 4096, Device{0}, &b).ok()) << last_message();
  EXPECT_NE(a, b);
  EXPECT_EQ(imports.bytes(), 12288u);
  EXPECT_NE(::ftruncate(file, 0), 0) << "the file is sealed against shrinking";
  Range range;
  ASSERT_TRUE(imports.find(a, &range));
  EXPECT_EQ(IpcImports::kind(range), Kind::kHost);
  EXPECT_EQ(IpcImports::state(range), PeerState::kAlive);
  bool found = false;
  EXPECT_TRUE(imports.close(a, &found).ok() && found);
  EXPECT_TRUE(imports.close(b, &found).ok() && found);
  ::close(file);
}

}  // namespace
}  // namespace gmm
