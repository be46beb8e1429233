// SPDX-License-Identifier: Apache-2.0
// The backup file: folders, limits, damage, and file systems that lack a feature. To imitate those, this program has
// its own open(), fallocate(), pread() and pwrite(). The library calls them in place of the C library's.
#include "engine/backup/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include "base/process.h"
#include "engine/backup/checksum.h"
#include "engine/backup/test_support.h"

namespace {

struct {
  std::atomic<bool> no_direct{false}, no_fallocate{false};
  std::atomic<bool> no_direct_transfer{false}, short_transfers{false};
  std::atomic<int> full_after{-1};  // calls of fallocate() that take what they are asked for
  std::atomic<uint32_t> opened{0}, refused{0}, interrupted{0}, calls{0};
} machine;

bool is_direct(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

ssize_t transfer(long number, int fd, void *data, size_t size, off_t offset) {
  if (machine.no_direct_transfer && is_direct(fd)) {
    // The first one waits for a second one.
    ++machine.refused;
    for (uint32_t i = 0; i < 60000 && machine.refused < 2; ++i) usleep(1000);
    errno = EINVAL;
    return -1;
  }
  if (machine.short_transfers) {
    if (machine.calls++ % 3 == 0) {
      ++machine.interrupted;
      errno = EINTR;
      return -1;
    }
    if (size > 4096) size = size / 2 / 4096 * 4096;
  }
  return syscall(number, fd, data, size, offset);
}

}  // namespace

extern "C" {

int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if ((flags & O_DIRECT) != 0 && machine.no_direct) {
    // As some systems do: the file is there all the same.
    close(static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags & ~O_DIRECT, mode)));
    errno = EINVAL;
    return -1;
  }
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if ((flags & O_CREAT) != 0 && fd >= 0) ++machine.opened;
  return fd;
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (machine.no_fallocate) {
    errno = EOPNOTSUPP;
    return -1;
  }
  if (machine.full_after >= 0 && machine.full_after-- == 0) {
    // A disk that gets full takes what it can before it says so.
    (void)syscall(SYS_fallocate, fd, mode, offset, size / 2);
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, size));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
  return transfer(SYS_pwrite64, fd, const_cast<void *>(data), size, offset);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset) { return transfer(SYS_pread64, fd, data, size, offset); }

}  // extern "C"

namespace gmm::test {
namespace {

class FileSystemTest : public BackupTest {
 public:
  void SetUp() override {
    machine.opened = 0;
    char name[] = "/tmp/gmm-backup-test-XXXXXX";
    folder = mkdtemp(name);
    configure(1, 1, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE, folder.c_str());
  }
  void TearDown() override {
    for (std::atomic<bool> *each :
         {&machine.no_direct, &machine.no_fallocate, &machine.no_direct_transfer, &machine.short_transfers})
      *each = false;
    machine.full_after = -1;
    EXPECT_EQ(rmdir(folder.c_str()), 0) << "a name stays in the folder";
  }
  // Sizes that are no multiples of a block, in two extents.
  void out_and_in() {
    constexpr uint64_t kSize = 30 * kMiB + 777;
    const std::vector<char> before = device(kSize);
    const std::vector<ByteRange> ranges = {range(0, 5000), range(5003, 9 * kMiB),
                                           range(9 * kMiB + 5003, kSize - 9 * kMiB - 5003)};
    KeptContents kept{HostAllocator()};
    ASSERT_TRUE(save(ranges, kept, has_chunk_checksum() ? GMM_TAG_CHECKSUM : 0).ok()) << last_message();
    EXPECT_EQ(BackupStore::totals(kept).file, kSize - 3);
    EXPECT_EQ(rmdir(folder.c_str()), 0) << "a kept file has a name while it is used";
    EXPECT_EQ(mkdir(folder.c_str(), 0700), 0);
    std::memset(memory.data(), 0x17, kSize);
    std::memcpy(memory.data() + 5000, before.data() + 5000, 3);
    ASSERT_TRUE(restore(ranges, kept).ok()) << last_message();
    EXPECT_EQ(memory, before);
    std::vector<char> out(kMiB);
    ASSERT_TRUE(store.read(kept, range(20 * kMiB, kMiB), out.data()).ok()) << last_message();
    EXPECT_EQ(std::memcmp(out.data(), before.data() + 20 * kMiB, kMiB), 0);
    store.drop(kept);
  }

  std::string folder;
};

TEST_F(FileSystemTest, NothingPastTheCache) {
  machine.no_direct = true;
  out_and_in();
  EXPECT_EQ(machine.opened, 1u);
}

TEST_F(FileSystemTest, AllThreadsMeetARefusedTransfer) {
  machine.no_direct_transfer = true;
  for (uint32_t i = 0; i < 5; ++i) {
    machine.refused = 0;
    out_and_in();
    EXPECT_GE(machine.refused, 2u);
    store.trim();
  }
}

TEST_F(FileSystemTest, ShortAndInterruptedTransfers) {
  machine.short_transfers = true;
  out_and_in();
  EXPECT_GT(machine.interrupted, 5u);
}

TEST_F(FileSystemTest, WithoutReservations) {
  machine.no_fallocate = true;
  out_and_in();
  // More than is there is refused before anything is copied.
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = kMiB;
  store.trim();
  device(8 * kMiB);
  KeptContents kept{HostAllocator()};
  bool has_copied = false;
  after_copies = [&] {
    has_copied = true;
    return Status();
  };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(save({range(0, 8 * kMiB)}, kept).code(), GMM_ERROR_IO);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(has_copied);
}

TEST_F(FileSystemTest, AFullDiskGetsBackWhatItGave) {
  device(16 * kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, 4 * kMiB)}, kept).ok()) << last_message();
  const uint64_t size = kept.chunks[0].size;
  machine.full_after = 0;
  KeptContents other{HostAllocator()};
  EXPECT_EQ(save({range(4 * kMiB, 12 * kMiB)}, other).code(), GMM_ERROR_IO);
  struct stat state = {};
  uint32_t files = 0;
  for (int fd = 3; fd < 100; ++fd) {
    char target[4096] = {};
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1) <= 0) continue;
    if (std::string(target).rfind(folder + "/", 0) != 0) continue;
    ++files;
    ASSERT_EQ(fstat(fd, &state), 0);
    EXPECT_EQ(static_cast<uint64_t>(state.st_blocks) * 512, size);
  }
  EXPECT_EQ(files, 1u);
  ASSERT_TRUE(save({range(4 * kMiB, 12 * kMiB)}, other).ok()) << last_message();
  store.drop(kept);
  store.drop(other);
}

TEST_F(FileSystemTest, OrphansAreReaped) {
  uint64_t start = 0;
  ASSERT_EQ(process_start_time(getpid(), &start), 0);
  const std::string dead = folder + "/gmm-backup-2147483646-5-0", other = folder + "/gmm-backup-x",
                    reused =
                        folder + "/gmm-backup-" + std::to_string(getpid()) + "-" + std::to_string(start + 1) + "-0",
                    mine = folder + "/gmm-backup-" + std::to_string(getpid()) + "-" + std::to_string(start) + "-0";
  for (const std::string &path : {dead, other, reused, mine}) close(open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  device(kMiB);
  KeptContents kept{HostAllocator()};
  ASSERT_TRUE(save({range(0, kMiB)}, kept).ok());
  EXPECT_NE(access(dead.c_str(), F_OK), 0);
  EXPECT_NE(access(reused.c_str(), F_OK), 0);
  EXPECT_EQ(access(other.c_str(), F_OK), 0);
  EXPECT_EQ(access(mine.c_str(), F_OK), 0);
  unlink(other.c_str());
  unlink(mine.c_str());
  store.drop(kept);
}

}  // namespace
}  // namespace gmm::test
