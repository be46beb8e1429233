// SPDX-License-Identifier: Apache-2.0
// Backups when the driver, the disk or the machine refuses.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/process.h"
#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class BackupFaultTest : public BackupTest {
 public:
  void TearDown() override {
    if (!folder.empty()) rmdir(folder.c_str());
  }
  const char *make_folder() {
    char name[] = "/tmp/gmm-backup-test-XXXXXX";
    folder = mkdtemp(name);
    return folder.c_str();
  }
  // The descriptor of a file without a name that lies in the folder; -1: none.
  int open_file() {
    DIR *files = opendir("/proc/self/fd");
    int found = -1;
    while (const dirent *entry = readdir(files)) {
      char target[4096] = {};
      if (readlinkat(dirfd(files), entry->d_name, target, sizeof target - 1) > 0 &&
          std::string(target).rfind(folder + "/", 0) == 0)
        found = std::atoi(entry->d_name);
    }
    closedir(files);
    return found;
  }
  uint64_t held() { return info().arena_used + info().pageable_bytes + info().file_bytes + info().zero_bytes; }

  std::string folder;
};

TEST_F(BackupFaultTest, EveryCallMayFail) {
  constexpr uint64_t kSize = 22 * kMiB;
  for (const Tier tier : {Tier::kArena, Tier::kPageable, Tier::kFile}) {
    only(tier);
    device(kSize);
    std::memset(memory.data() + 8 * kMiB, 0, 4 * kMiB);
    const std::vector<char> before = memory;
    uint64_t failures = 0;
    for (uint64_t k = 1;; k += kStride) {
      KeptContents kept{HostAllocator()};
      ASSERT_TRUE(save({range(0, 4 * kMiB)}, kept).ok());
      const uint64_t held_before = held();
      engine.backend->refuse(k);
      const Status status = save({range(0, kSize)}, kept, GMM_TAG_CHECKSUM);
      const bool reached = engine.backend->refused() != 0;
      engine.backend->refuse(0);
      if (!status.ok()) {
        ++failures;
        EXPECT_TRUE(reached);
        EXPECT_EQ(kept.chunks.size(), 1u);
        EXPECT_EQ(held(), held_before);
        ASSERT_TRUE(save({range(0, kSize)}, kept, GMM_TAG_CHECKSUM).ok()) << last_message();
      }
      std::memset(memory.data(), 0x21, kSize);
      engine.backend->refuse(k);
      const Status back = restore({range(0, kSize)}, kept);
      const bool reached_again = engine.backend->refused() != 0;
      engine.backend->refuse(0);
      if (!back.ok()) {
        EXPECT_TRUE(reached_again);
        ASSERT_TRUE(restore({range(0, kSize)}, kept).ok()) << last_message();
      }
      ASSERT_EQ(std::memcmp(memory.data(), before.data(), kSize), 0) << k;
      store.drop_all(kept);
      EXPECT_EQ(held(), 0u);
      if (!reached && !reached_again) break;
    }
    EXPECT_GT(failures, 10 / kStride);
    EXPECT_EQ(engine.backend->count("event_create"), engine.backend->count("event_destroy"));
    EXPECT_EQ(engine.backend->count("stream_create"), engine.backend->count("stream_destroy"));
  }
}

TEST_F(BackupFaultTest, StepsMayFail) {
  device(40 * kMiB);
  const std::vector<char> before = memory;
  const ByteRange ranges[] = {range(0, 20 * kMiB), range(20 * kMiB, 20 * kMiB)};
  KeptContents kept[2] = {KeptContents{HostAllocator()}, KeptContents{HostAllocator()}};
  const BackupPart parts[] = {{&ranges[0], 1, &kept[0]}, {&ranges[1], 1, &kept[1]}};
  for (uint64_t k = 1; k <= 2; ++k) {
    recorder = Recorder();
    recorder.fail_at = k;
    EXPECT_EQ(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).code(), GMM_ERROR_DRIVER);
    EXPECT_EQ(recorder.events.size(), k);
    EXPECT_TRUE(kept[0].chunks.empty() && kept[1].chunks.empty());
    EXPECT_EQ(held(), 0u);
  }
  recorder = Recorder();
  ASSERT_TRUE(store.save(Device{0}, GMM_CONTENTS_HOST, 0, parts, 2, recorder.steps()).ok());
  for (uint64_t k = 1; k <= 4; ++k) {
    recorder = Recorder();
    recorder.fail_at = k;
    EXPECT_EQ(store.restore(Device{0}, parts, 2, recorder.steps()).code(), GMM_ERROR_DRIVER);
    EXPECT_EQ(recorder.events.size(), k) << "no part is told of after one that failed";
  }
  recorder = Recorder();
  std::memset(memory.data(), 0, 40 * kMiB);
  ASSERT_TRUE(store.restore(Device{0}, parts, 2, recorder.steps()).ok());
  EXPECT_EQ(memory, before);
  for (KeptContents &each : kept) store.drop_all(each);
}

TEST_F(BackupFaultTest, AFolderThatIsNoMore) {
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, make_folder());
  rmdir(folder.c_str());
  device(kMiB);
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, kMiB)}, kept).code(), GMM_ERROR_IO);
  EXPECT_NE(std::string(last_message()).find("GMM_BACKUP_DIR"), std::string::npos) << last_message();
  EXPECT_TRUE(recorder.events.empty()) << "nothing may be unmapped before the room is there";
  gmm_backup_desc desc = {};
  desc.directory = folder.c_str();
  EXPECT_EQ(store.configure(desc).code(), GMM_ERROR_IO);
  const std::string longer(5000, 'x');
  desc.directory = longer.c_str();
  EXPECT_EQ(store.configure(desc).code(), GMM_ERROR_INVALID_VALUE);
  only(Tier::kFile);
  EXPECT_TRUE(save({range(0, kMiB)}, kept).ok());
  store.drop_all(kept);
}

TEST_F(BackupFaultTest, AFullDisk) {
  make_folder();
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=8m") != 0) GTEST_SKIP() << "mounting needs root";
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, folder.c_str());
  device(16 * kMiB);
  const std::vector<char> before = memory;
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, 16 * kMiB)}, kept).code(), GMM_ERROR_IO);
  EXPECT_TRUE(recorder.events.empty());
  EXPECT_TRUE(kept.chunks.empty());
  EXPECT_EQ(open_file(), -1) << "its room went back";
  // A file system that may refuse O_DIRECT.
  ASSERT_TRUE(save({range(0, 6 * kMiB)}, kept).ok()) << last_message();
  std::memset(memory.data(), 0, 6 * kMiB);
  ASSERT_TRUE(restore({range(0, 6 * kMiB)}, kept).ok()) << last_message();
  EXPECT_EQ(memory, before);
  store.drop_all(kept);
  store.trim();  // else the file keeps the disk
  EXPECT_EQ(umount(folder.c_str()), 0);
}

TEST_F(BackupFaultTest, ALimitOfFiles) {
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, make_folder());
  device(8 * kMiB);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = kMiB;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  KeptContents kept{HostAllocator()};
  const Status status = save({range(0, 8 * kMiB)}, kept);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), GMM_ERROR_IO);
  EXPECT_EQ(open_file(), -1);
  EXPECT_TRUE(save({range(0, 8 * kMiB)}, kept).ok());
  store.drop_all(kept);
}

TEST_F(BackupFaultTest, AFileStaysForTheNextSave) {
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, make_folder());
  device(8 * kMiB);
  KeptContents kept{HostAllocator()};
  struct stat first = {}, second = {};
  for (struct stat *state : {&first, &second}) {
    ASSERT_TRUE(save({range(0, 8 * kMiB)}, kept).ok()) << last_message();
    EXPECT_EQ(kept.chunks[0].location & 0xffffffff, 0u);
    store.drop_all(kept);
    EXPECT_EQ(info().file_bytes, 0u);
    ASSERT_EQ(fstat(open_file(), state), 0);
  }
  EXPECT_EQ(first.st_ino, second.st_ino);
  EXPECT_EQ(second.st_size, static_cast<off_t>(8 * kMiB)) << "its room is used again";
  // What is kept keeps the file.
  ASSERT_TRUE(save({range(0, kMiB)}, kept).ok());
  store.trim();
  EXPECT_GE(open_file(), 0);
  std::vector<char> out(kMiB);
  EXPECT_TRUE(store.read(kept, range(0, kMiB), out.data()).ok()) << last_message();
  store.drop_all(kept);
  EXPECT_GE(open_file(), 0);
  store.trim();
  EXPECT_EQ(open_file(), -1);
  ASSERT_TRUE(save({range(0, kMiB)}, kept).ok());
  // Another folder: the file goes with the last that is kept in it.
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, "/tmp");
  KeptContents other{HostAllocator()};
  ASSERT_TRUE(save({range(4 * kMiB, kMiB)}, other).ok());
  EXPECT_GE(open_file(), 0);
  EXPECT_TRUE(store.read(kept, range(0, kMiB), out.data()).ok()) << last_message();
  store.drop_all(kept);
  EXPECT_EQ(open_file(), -1);
  store.drop_all(other);
}

TEST_F(BackupFaultTest, AFileThatChanged) {
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, make_folder());
  device(12 * kMiB);
  const std::vector<char> before = memory;
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, 12 * kMiB)}, kept, GMM_TAG_CHECKSUM).ok()) << last_message();
  const int fd = open_file();
  ASSERT_GE(fd, 0);
  // One block of it, written past the descriptor's own O_DIRECT.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int other = open(path.c_str(), O_RDWR);
  ASSERT_GE(other, 0);
  char byte = 0;
  const off_t at = static_cast<off_t>(kept.chunks[1].location + 1000);
  ASSERT_EQ(pread(other, &byte, 1, at), 1);
  const char wrong = static_cast<char>(byte ^ 1);
  ASSERT_EQ(pwrite(other, &wrong, 1, at), 1);
  EXPECT_EQ(restore({range(0, 12 * kMiB)}, kept).code(), GMM_ERROR_CORRUPT);
  char text[32];
  std::snprintf(text, sizeof text, "%#lx", static_cast<unsigned long>(kept.chunks[1].base));
  EXPECT_NE(std::string(last_message()).find(text), std::string::npos) << last_message();
  ASSERT_EQ(pwrite(other, &byte, 1, at), 1);
  std::memset(memory.data(), 0, 12 * kMiB);
  EXPECT_TRUE(restore({range(0, 12 * kMiB)}, kept).ok()) << last_message();
  EXPECT_EQ(memory, before);
  ASSERT_EQ(ftruncate(other, 5 * kMiB), 0);
  close(other);
  EXPECT_EQ(restore({range(0, 12 * kMiB)}, kept).code(), GMM_ERROR_IO);
  EXPECT_NE(std::string(last_message()).find(text), std::string::npos) << last_message();
  std::vector<char> out(12 * kMiB);
  EXPECT_EQ(store.read(kept, range(4 * kMiB, kMiB), out.data()).code(), GMM_ERROR_IO);
  EXPECT_TRUE(store.read(kept, range(0, 4 * kMiB), out.data()).ok());
  store.drop_all(kept);
}

TEST_F(BackupFaultTest, OrphansAreReaped) {
  make_folder();
  uint64_t start = 0;
  ASSERT_EQ(process_start_time(getpid(), &start), 0);
  const std::string dead = folder + "/gmm-backup-2147483646-5-0", other = folder + "/gmm-backup-x",
                    reused =
                        folder + "/gmm-backup-" + std::to_string(getpid()) + "-" + std::to_string(start + 1) + "-0",
                    mine = folder + "/gmm-backup-" + std::to_string(getpid()) + "-" + std::to_string(start) + "-0";
  for (const std::string &path : {dead, other, reused, mine}) close(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, folder.c_str());
  device(kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kMiB)}, kept).ok());
  EXPECT_NE(access(dead.c_str(), F_OK), 0);
  EXPECT_NE(access(reused.c_str(), F_OK), 0);
  EXPECT_EQ(access(other.c_str(), F_OK), 0);
  EXPECT_EQ(access(mine.c_str(), F_OK), 0);
  unlink(other.c_str());
  unlink(mine.c_str());
  store.drop_all(kept);
}

TEST_F(BackupFaultTest, NoRoomAnywhere) {
  configure(4 * kMiB, 4 * kMiB, 0, make_folder());
  device(16 * kMiB);
  rmdir(folder.c_str());
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, 16 * kMiB)}, kept).code(), GMM_ERROR_IO);
  EXPECT_EQ(held(), 0u);
  EXPECT_TRUE(save({range(0, 8 * kMiB)}, kept).ok()) << last_message();
  store.drop_all(kept);
}

TEST_F(BackupFaultTest, AWrongEnvironment) {
  setenv("GMM_BACKUP_ARENA_LIMIT", "plenty", 1);
  device(kMiB);
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, kMiB)}, kept).code(), GMM_ERROR_INVALID_VALUE);
  setenv("GMM_BACKUP_ARENA_LIMIT", "2097152", 1);
  EXPECT_TRUE(save({range(0, kMiB)}, kept).ok());
  EXPECT_EQ(info().arena_limit, 2 * kMiB);
  unsetenv("GMM_BACKUP_ARENA_LIMIT");
  store.drop_all(kept);
}

// Whoever trims, asks, reads and drops meanwhile does not wait for a save and does it no harm.
TEST_F(BackupFaultTest, OthersMeanwhile) {
  constexpr uint64_t kSize = 24 * kMiB;
  configure(64 * kMiB, 64 * kMiB);
  device(kSize);
  const std::vector<char> before = memory;
  KeptContents other{HostAllocator()};
  ASSERT_TRUE(save({range(0, 9 * kMiB)}, other).ok());
  std::atomic<bool> stop{false};
  std::thread trimmer([&] {
    while (!stop) {
      store.trim();
      gmm_backup_info now = {};
      store.query(&now);
    }
  });
  std::thread reader([&] {
    std::vector<char> out(9 * kMiB);
    while (!stop) {
      ASSERT_TRUE(store.read(other, range(0, 9 * kMiB), out.data()).ok());
      ASSERT_EQ(std::memcmp(out.data(), before.data(), out.size()), 0);
    }
  });
  for (uint32_t i = 0; i < 10; i += kStride) {
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save({range(0, kSize)}, kept, i % 2 == 0 ? GMM_TAG_CHECKSUM : 0).ok()) << last_message();
    ASSERT_TRUE(restore({range(0, kSize)}, kept).ok()) << last_message();
    ASSERT_EQ(memory, before);
    store.drop_all(kept);
  }
  stop = true;
  trimmer.join();
  reader.join();
  // A trim inside a save comes back at once.
  bool trimmed = false;
  recorder.on_progress = [&] {
    store.trim();
    trimmed = true;
  };
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kSize)}, kept).ok());
  EXPECT_TRUE(trimmed);
  store.drop_all(kept);
  store.drop_all(other);
}

}  // namespace
}  // namespace gmm::test
