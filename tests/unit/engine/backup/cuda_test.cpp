// SPDX-License-Identifier: Apache-2.0
// Backups of VMM memory of a CUDA device: the fake driver, or a real one. With the fake each call of the driver fails once.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "engine/backup/store.h"
#include "engine/sanitizer.h"
#include "fake_cuda/fake_cuda.h"

namespace gmm::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr Device kDevice{0};
constexpr int kOutOfMemory = 2;

class BackupCudaTest : public testing::Test {
 public:
  void SetUp() override {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) GTEST_SKIP() << "no CUDA driver";
    live_ = reinterpret_cast<decltype(live_)>(dlsym(library_, "fake_cuda_live"));
    fail_ = reinterpret_cast<decltype(fail_)>(dlsym(library_, "fake_cuda_fail"));
    failures_ = reinterpret_cast<decltype(failures_)>(dlsym(library_, "fake_cuda_failures"));
    ASSERT_TRUE(cuda_backend_create(HostAllocator(), Log(nullptr, nullptr), &backend).ok()) << last_message();
    core.backend = backend;
    for (Extent &each : extents) {
      ASSERT_TRUE(backend->reserve(kExtent, &each.base).ok());
      ASSERT_TRUE(backend->create(kDevice, kExtent, &each.handle).ok());
      map(each);
    }
  }
  void TearDown() override {
    if (backend == nullptr) return;
    store.clear();
    for (Extent &each : extents) {
      unmap(each);
      EXPECT_TRUE(backend->release(each.handle).ok());
      EXPECT_TRUE(backend->unreserve(each.base, kExtent).ok());
    }
    core.deferred_release.retry(*backend);
    backend->destroy();
  }

  static constexpr uint64_t kExtent = 24 * kMiB;
  struct Extent {
    void *base = nullptr;
    PhysicalHandle handle;
    std::vector<char> contents;
    bool mapped = false;
  };
  void map(Extent &extent) {
    ASSERT_TRUE(backend->map(extent.base, kExtent, extent.handle).ok());
    ASSERT_TRUE(backend->set_access(extent.base, kExtent, kDevice, 0).ok());
    extent.mapped = true;
  }
  void unmap(Extent &extent) {
    if (extent.mapped) {
      EXPECT_TRUE(backend->unmap(extent.base, kExtent).ok());
    }
    extent.mapped = false;
  }
  void copy(void *to, const void *from, uint64_t size) {
    ASSERT_TRUE(backend->copy(kDevice, GMM_STREAM_DEFAULT, to, from, size).ok()) << last_message();
    ASSERT_TRUE(backend->stream_synchronize(kDevice, GMM_STREAM_DEFAULT).ok());
  }
  void fill_with_random() {
    std::mt19937_64 random(5);
    for (Extent &each : extents) {
      each.contents.resize(kExtent);
      for (uint64_t i = 0; i < kExtent; i += 8) {
        const uint64_t word = i / (4 * kMiB) == 2 ? 0 : random();
        std::memcpy(each.contents.data() + i, &word, 8);
      }
      copy(each.base, each.contents.data(), kExtent);
    }
  }
  void check_contents() {
    std::vector<char> now(used);
    for (Extent &each : extents) {
      copy(now.data(), each.base, used);
      ASSERT_EQ(std::memcmp(now.data(), each.contents.data(), used), 0);
    }
  }
  void configure(uint64_t arena, uint64_t pageable, uint32_t flags) {
    gmm_backup_desc desc = {};
    desc.arena_limit = arena;
    desc.pageable_limit = pageable;
    desc.flags = flags;
    desc.threads = 2;
    ASSERT_TRUE(store.configure(desc).ok());
  }
  void only(Tier tier) {
    if (tier == Tier::kArena) configure(256 * kMiB, 1, GMM_BACKUP_NO_PAGEABLE);
    if (tier == Tier::kPageable) configure(1, 256 * kMiB, GMM_BACKUP_NO_ARENA);
    if (tier == Tier::kFile) configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE);
  }
  // As a pause does it: each extent is unmapped when its contents are out, and mapped before they come back. With `lose`, what was in it is
  // overwritten.
  Status pass(bool out, bool lose = true) {
    ByteRange ranges[2];
    BackupPart parts[2];
    for (int i = 0; i < 2; ++i) {
      ranges[i] = ByteRange{reinterpret_cast<uintptr_t>(extents[i].base), used};
      parts[i] = BackupPart{&ranges[i], 1, &kept[i]};
    }
    if (!out && lose)
      for (Extent &each : extents) {
        std::vector<char> wrong(kExtent, 0x3c);
        if (!each.mapped) map(each);
        copy(each.base, wrong.data(), kExtent);
        unmap(each);
      }
    BackupSteps steps;
    steps.user = this;
    if (unmaps) {
      steps.before = [](void *self, uint64_t part) {
        static_cast<BackupCudaTest *>(self)->map(static_cast<BackupCudaTest *>(self)->extents[part]);
        return Status();
      };
      steps.after = [](void *self, uint64_t part) {
        BackupCudaTest *test = static_cast<BackupCudaTest *>(self);
        if (test->saving) test->unmap(test->extents[part]);
        return Status();
      };
    }
    saving = out;
    return out ? store.save(kDevice, GMM_CONTENTS_HOST, GMM_TAG_CHECKSUM, parts, 2, steps)
               : store.restore(kDevice, parts, 2, steps);
  }
  fake_cuda_live_t live() {
    fake_cuda_live_t now = {};
    if (live_ != nullptr) live_(&now);
    return now;
  }
  gmm_backup_info info() {
    gmm_backup_info info = {};
    store.query(&info);
    return info;
  }

  Core core{HostAllocator(), Log(nullptr, nullptr)};
  BackupStore store{core};
  Backend *backend = nullptr;
  Extent extents[2];
  KeptContents kept[2] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
  uint64_t used = kExtent;  // of each extent
  bool saving = false, unmaps = true;
  void *library_ = nullptr;
  decltype(&::fake_cuda_live) live_ = nullptr;
  decltype(&::fake_cuda_fail) fail_ = nullptr;
  decltype(&::fake_cuda_failures) failures_ = nullptr;
};

TEST_F(BackupCudaTest, ContentsSurviveTheLossOfTheirMemory) {
  fill_with_random();
  for (const Tier tier : {Tier::kArena, Tier::kPageable, Tier::kFile}) {
    only(tier);
    ASSERT_TRUE(pass(true).ok()) << last_message();
    EXPECT_FALSE(extents[0].mapped || extents[1].mapped);
    EXPECT_EQ(BackupStore::totals(kept[0]).zero, 4 * kMiB);
    ASSERT_TRUE(pass(false).ok()) << last_message();
    check_contents();
    for (KeptContents &each : kept) store.drop_all(each);
  }
  EXPECT_EQ(info().skipped_bytes, 3 * 2 * 2 * 4 * kMiB);
}

TEST_F(BackupCudaTest, WhatCannotBeLockedGoesElsewhere) {
  if (fail_ == nullptr) GTEST_SKIP() << "a real driver cannot be told to refuse";
  fill_with_random();
  configure(256 * kMiB, 256 * kMiB, 0);
  // The first registrations are those of the buffer for zeros and of the first segment.
  for (uint64_t k = 1; k <= 4; ++k) {
    store.trim();
    fail_("cuMemHostRegister", k, kOutOfMemory);
    ASSERT_TRUE(pass(true).ok()) << last_message();
    fail_(nullptr, 0, 0);
    const BackupTotals first = BackupStore::totals(kept[0]), second = BackupStore::totals(kept[1]);
    const uint64_t zero = k == 1 ? 0 : 8 * kMiB;  // without a buffer nobody can be asked
    EXPECT_EQ(first.zero + second.zero, zero);
    EXPECT_EQ(first.arena + second.arena + first.pageable + second.pageable, 2 * kExtent - zero);
    if (k == 2) {
      EXPECT_EQ(first.arena, 0u);
    }
    if (k == 3) {
      EXPECT_GT(first.arena, 0u);
      EXPECT_GT(second.pageable, 0u);
    }
    ASSERT_TRUE(pass(false).ok()) << last_message();
    check_contents();
    for (KeptContents &each : kept) store.drop_all(each);
  }
}

TEST_F(BackupCudaTest, EveryCallOfTheDriverMayFail) {
  if (fail_ == nullptr) GTEST_SKIP() << "a real driver cannot be told to refuse";
  fill_with_random();
  used = 5 * kMiB;
  unmaps = false;  // the test's own calls are not to fail
  for (const Tier tier : {Tier::kArena, Tier::kPageable, Tier::kFile}) {
    only(tier);
    uint64_t failures = 0;
    for (uint64_t k = 1;; k += kStride) {
      store.trim();
      const fake_cuda_live_t before = live();
      const uint64_t seen = failures_();
      fail_(nullptr, k, kOutOfMemory);
      const Status out = pass(true);
      fail_(nullptr, 0, 0);
      if (!out.ok()) {
        ++failures;
        EXPECT_TRUE(kept[0].chunks.empty() && kept[1].chunks.empty());
        store.trim();
        const fake_cuda_live_t now = live();
        EXPECT_EQ(now.streams, before.streams) << k;
        EXPECT_EQ(now.events, before.events) << k;
        EXPECT_EQ(now.registrations, before.registrations) << k;
        ASSERT_TRUE(pass(true).ok()) << k << ": " << last_message();
      }
      const uint64_t seen_out = failures_();
      const std::vector<char> wrong(used, 0x3c);
      for (Extent &each : extents) copy(each.base, wrong.data(), used);
      fail_(nullptr, k, kOutOfMemory);
      const Status in = pass(false, false);
      fail_(nullptr, 0, 0);
      if (!in.ok()) {
        ASSERT_TRUE(pass(false, false).ok()) << k << ": " << last_message();
      }
      check_contents();
      for (KeptContents &each : kept) store.drop_all(each);
      core.deferred_release.retry(*backend);
      if (seen == seen_out && failures_() == seen_out) break;
    }
    EXPECT_GT(failures, 5 / kStride);
    store.trim();
    EXPECT_EQ(live().registrations, 0u);
  }
}

}  // namespace
}  // namespace gmm::test
