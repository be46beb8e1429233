// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/imports.h"

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
