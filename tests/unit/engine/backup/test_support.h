// SPDX-License-Identifier: Apache-2.0
// A BackupStore over the host backend, and host memory that stands for a device's.
#ifndef GMM_TESTS_UNIT_ENGINE_BACKUP_TEST_SUPPORT_H
#define GMM_TESTS_UNIT_ENGINE_BACKUP_TEST_SUPPORT_H

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/backup/store.h"
#include "engine/heap/test_support.h"
#include "engine/sanitizer.h"

namespace gmm::test {

// The flag for transfers that also take checksums where the library has them. Cases that only checksums can show are
// skipped without them.
inline uint32_t checksum_flag() { return BackupStore::can_checksum() ? GMM_TAG_CHECKSUM : 0; }

// Records the steps of a transfer. A test may let one of them fail.
struct Recorder {
  BackupSteps steps() {
    BackupSteps steps;
    steps.user = this;
    steps.before = [](void *user, uint64_t part) { return static_cast<Recorder *>(user)->note("before", part); };
    steps.after = [](void *user, uint64_t part) { return static_cast<Recorder *>(user)->note("after", part); };
    steps.progress = [](void *user, uint64_t bytes) {
      Recorder *self = static_cast<Recorder *>(user);
      self->progress.push_back(bytes);
      return Status();
    };
    return steps;
  }
  Status note(const char *what, uint64_t part) {
    events.push_back(std::string(what) + std::to_string(part));
    if (on_part) on_part(what, part);
    return events.size() == fail_at ? fail(GMM_ERROR_DRIVER, "The test refuses.") : Status();
  }
  std::vector<std::string> events;
  std::vector<uint64_t> progress;
  uint64_t fail_at = 0;
  std::function<void(const char *, uint64_t)> on_part;
};

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

  // At least so many random bytes of a seed. Those of the last seed stay: to make them takes longer
  // than most tests.
  static const std::vector<char> &random_bytes(uint64_t size, uint32_t seed) {
    static std::vector<char> bytes;
    static uint32_t of = 0;
    if (of != seed || bytes.size() < size) {
      std::mt19937_64 random(of = seed);
      bytes.resize((size + 7) / 8 * 8);
      for (uint64_t i = 0; i < bytes.size(); i += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
      }
    }
    return bytes;
  }
  // Fills the memory that stands for a device's with random contents.
  std::vector<char> &device(uint64_t size, uint32_t seed = 1) {
    memory.assign(size + 64, 0);
    const std::vector<char> &bytes = random_bytes(size, seed);
    std::memcpy(memory.data(), bytes.data(), size);
    return memory;
  }
  ByteRange range(uint64_t offset, uint64_t size) {
    return ByteRange{reinterpret_cast<uintptr_t>(memory.data()) + offset, size};
  }
  Status save(const std::vector<ByteRange> &ranges, KeptContents &kept, uint32_t flags = 0,
              gmm_contents contents = GMM_CONTENTS_HOST) {
    const BackupPart part{ranges.data(), ranges.size(), &kept};
    return store.save(Device{0}, contents, flags, &part, 1, recorder.steps());
  }
  Status restore(const std::vector<ByteRange> &ranges, KeptContents &kept) {
    const BackupPart part{ranges.data(), ranges.size(), &kept};
    return store.restore(Device{0}, &part, 1, recorder.steps());
  }
  gmm_backup_info info() {
    gmm_backup_info info = {};
    store.query(&info);
    return info;
  }
  // Bytes of contents in all tiers.
  uint64_t kept_bytes() { return info().arena_used + info().pageable_bytes + info().file_bytes + info().zero_bytes; }
  // Invariants of every list of chunks.
  static void check(const KeptContents &kept) {
    for (uint64_t i = 0; i < kept.chunks.size(); ++i) {
      ASSERT_GT(kept.chunks[i].size, 0u);
      ASSERT_LE(kept.chunks[i].size, kMaxChunk);
      if (i != 0) {
        ASSERT_GE(kept.chunks[i].base, kept.chunks[i - 1].base + kept.chunks[i - 1].size);
      }
    }
  }

  std::vector<char> memory;
  Engine engine;
  BackupStore store{engine.core};
  Recorder recorder;
};

}  // namespace gmm::test
#endif
