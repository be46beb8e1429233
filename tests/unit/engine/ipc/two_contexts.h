// SPDX-License-Identifier: Apache-2.0
// Two contexts of this process over the host backend. Each has its own broker, so one imports from the other as from
// another process.
#ifndef GMM_TESTS_UNIT_ENGINE_IPC_TWO_CONTEXTS_H
#define GMM_TESTS_UNIT_ENGINE_IPC_TWO_CONTEXTS_H

#include <gmm/gmm.h>
#include <gtest/gtest.h>

#include "engine/context/context.h"
#include "engine/ipc/test_support.h"

namespace gmm::test {

class TwoContextsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    exporter_ = make_context();
    importer_ = make_context();
  }
  void TearDown() override {
    gmm_context_release(importer_);
    gmm_context_release(exporter_);
    ::unsetenv("GMM_IPC_DIR");
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  gmm_context *make_context() {
    gmm_context_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.log = {Journal::write, &journal_};
    desc.backend = GMM_BACKEND_HOST;
    desc.host_memory = uint64_t{1} << 30;
    gmm_context *context = nullptr;
    EXPECT_EQ(gmm_context_create(&desc, &context), GMM_OK) << gmm_last_error_message();
    return context;
  }
  void *allocate(uint64_t size, uint32_t flags = 0) {
    gmm_alloc_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = GMM_KIND_VMM;
    desc.flags = flags;
    void *memory = nullptr;
    EXPECT_EQ(gmm_alloc(exporter_, size, &desc, &memory), GMM_OK) << gmm_last_error_message();
    return memory;
  }
  void free_block(void *memory) {
    EXPECT_EQ(gmm_free(exporter_, memory, GMM_STREAM_DEFAULT), GMM_OK) << gmm_last_error_message();
  }
  gmm_ipc_handle export_bytes(const void *memory) {
    gmm_ipc_handle bytes = {};
    EXPECT_TRUE(exporter_->ipc().exports.export_block(memory, &bytes).ok()) << last_message();
    return bytes;
  }
  static IpcHandle decode(const gmm_ipc_handle &bytes) {
    IpcHandle handle;
    EXPECT_TRUE(ipc_handle_decode(bytes, &handle).ok()) << last_message();
    return handle;
  }
  void *import(const gmm_ipc_handle &bytes) {
    void *memory = nullptr;
    EXPECT_TRUE(importer_->ipc().import_block(bytes, Device{0}, kPatience, &memory).ok()) << last_message();
    return memory;
  }
  uint32_t importers_of(const void *memory) const {
    Block block;
    EXPECT_TRUE(find_block(exporter_->core(), memory, &block));
    return block.extent->importers.load();
  }

  gmm_context *exporter_ = nullptr;
  gmm_context *importer_ = nullptr;
  std::string directory_;
  Journal journal_;  // of both contexts
};

}  // namespace gmm::test
#endif
