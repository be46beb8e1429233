// SPDX-License-Identifier: Apache-2.0
// A BackupStore over the host backend, and host memory that stands for a device's.
#ifndef GMM_TESTS_UNIT_ENGINE_BACKUP_TEST_SUPPORT_H
#define GMM_TESTS_UNIT_ENGINE_BACKUP_TEST_SUPPORT_H

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/backup/store.h"
#include "engine/heap/test_support.h"

namespace gmm::test {

class BackupTest : public testing::Test {
 public:
  void configure(uint64_t arena, uint64_t pageable, uint32_t flags = 0, const char *directory = nullptr) {
    gmm_backup_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.arena_limit = arena;
    desc.pageable_limit = pageable;
    desc.flags = flags;
    desc.directory = directory;
    desc.threads = 3;
    ASSERT_TRUE(store.configure(desc).ok()) << last_message();
  }
  // Configures the store so that all chunks go to this tier.
  void only(Tier tier) {
    if (tier == Tier::kArena) configure(1024 * kMiB, 1, GMM_BACKUP_NO_PAGEABLE);
    if (tier == Tier::kPageable) configure(1, 1024 * kMiB, GMM_BACKUP_NO_ARENA);
    if (tier == Tier::kFile) configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE);
  }

  // Memory that stands for a device's, with contents that differ everywhere.
  std::vector<char> &device(uint64_t size) {
    memory.resize(size);
    for (uint64_t i = 0; i < size; ++i) memory[i] = static_cast<char>(i * 2654435761u >> 24);
    return memory;
  }
  ByteRange range(uint64_t offset, uint64_t size) {
    return ByteRange{reinterpret_cast<uintptr_t>(memory.data()) + offset, size};
  }
  Status save(const std::vector<ByteRange> &ranges, KeptContents &kept, uint32_t flags = 0) {
    const BackupPart part{ranges.data(), ranges.size(), &kept};
    BackupSteps steps;
    steps.user = this;
    steps.after = [](void *self, uint64_t) { return static_cast<BackupTest *>(self)->after_copies(); };
    return store.save(Device{0}, GMM_CONTENTS_HOST, flags, &part, 1, steps);
  }
  Status restore(const std::vector<ByteRange> &ranges, KeptContents &kept) {
    const BackupPart part{ranges.data(), ranges.size(), &kept};
    return store.restore(Device{0}, &part, 1, BackupSteps());
  }
  gmm_backup_info info() {
    gmm_backup_info info = {};
    store.query(&info);
    return info;
  }
  // Bytes of contents in all tiers.
  uint64_t kept_bytes() { return info().arena_used + info().pageable_bytes + info().file_bytes + info().zero_bytes; }

  std::vector<char> memory;
  Engine engine;
  BackupStore store{engine.core};
  std::function<Status()> after_copies = [] { return Status(); };  // of a save
};

}  // namespace gmm::test
#endif
