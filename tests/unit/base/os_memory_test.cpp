// SPDX-License-Identifier: Apache-2.0
#include "base/os_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../page_locks.h"

namespace gmm {
namespace {

constexpr uint64_t kHuge = os::kHugePage;

bool aligned(const void *address, uint64_t alignment) { return reinterpret_cast<uintptr_t>(address) % alignment == 0; }

// Whether the whole range is mapped, with or without access.
bool mapped(void *base, uint64_t size) { return msync(base, size, MS_ASYNC) == 0; }

TEST(OsMemory, RefusesImpossibleReservations) {
  void *base = nullptr;
  EXPECT_EQ(os::reserve(uint64_t{1} << 60, kHuge, &base).code(), GMM_ERROR_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(last_native(), ENOMEM);
  EXPECT_NE(last_message()[0], '\0');
  EXPECT_EQ(os::reserve(0, kHuge, &base).code(), GMM_ERROR_SYSTEM);
  EXPECT_EQ(last_native(), EINVAL);
  EXPECT_EQ(base, nullptr);
}

TEST(OsMemory, MapsAFileOverAReservation) {
  int32_t fd = -1;
  void *base = nullptr, *view = nullptr;
  ASSERT_TRUE(os::memory_file_create("test", kHuge, &fd).ok()) << last_message();
  ASSERT_TRUE(os::reserve(2 * kHuge, kHuge, &base).ok());
  ASSERT_TRUE(os::map_file_at(base, kHuge, fd, 0, os::Access::kNone).ok()) << last_message();
  ASSERT_TRUE(os::set_access(base, kHuge, os::Access::kReadWrite).ok()) << last_message();
  ASSERT_TRUE(os::map_file(kHuge, kHuge, fd, 0, os::Access::kReadWrite, &view).ok()) << last_message();
  EXPECT_TRUE(aligned(view, kHuge));
  std::memset(base, 7, kHuge);
  EXPECT_EQ(static_cast<char *>(view)[kHuge - 1], 7);
  ASSERT_TRUE(os::reserve_at(base, kHuge).ok());
  EXPECT_TRUE(mapped(base, 2 * kHuge)) << "the addresses are kept";
  EXPECT_EQ(static_cast<char *>(view)[0], 7);
  EXPECT_TRUE(os::unmap(base, 2 * kHuge).ok());
  EXPECT_TRUE(os::unmap(view, kHuge).ok());
  EXPECT_TRUE(os::close_file(fd).ok());
  EXPECT_EQ(os::close_file(fd).code(), GMM_ERROR_INVALID_HANDLE);
  EXPECT_EQ(os::map_file_at(base, kHuge, fd, 0, os::Access::kNone).code(), GMM_ERROR_INVALID_HANDLE);
}

TEST(OsMemory, FilesKeepTheirSize) {
  int32_t fd = -1, copy = -1;
  uint64_t size = 0;
  ASSERT_TRUE(os::memory_file_create("test", kHuge, &fd).ok());
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  ASSERT_TRUE(os::duplicate(fd, &copy).ok());
  EXPECT_NE(fcntl(copy, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(os::close_file(fd).ok());
  ASSERT_TRUE(os::memory_file_size(copy, &size).ok());
  EXPECT_EQ(size, kHuge);
  EXPECT_TRUE(os::memory_file_check(copy, kHuge).ok());
  EXPECT_EQ(os::memory_file_check(copy, 2 * kHuge).code(), GMM_ERROR_INVALID_SIZE);
  EXPECT_TRUE(os::close_file(copy).ok());
  EXPECT_EQ(os::memory_file_check(copy, kHuge).code(), GMM_ERROR_INVALID_HANDLE);
  EXPECT_EQ(os::duplicate(copy, &fd).code(), GMM_ERROR_INVALID_HANDLE);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_EQ(os::memory_file_check(pipes[0], 0).code(), GMM_ERROR_IPC_INVALID_HANDLE);
  close(pipes[0]);
  close(pipes[1]);
  EXPECT_EQ(os::memory_file_create("test", UINT64_MAX / 2 + 1, &fd).code(), GMM_ERROR_SIZE_OVERFLOW);
}

TEST(OsMemory, AFailedLockLeavesNothingLocked) {
  if (!test::kPageLocksAreReal) GTEST_SKIP() << "the sanitizer makes page locks nothing";
  void *base = nullptr;
  ASSERT_TRUE(os::map_anonymous(2 * kHuge, kHuge, &base).ok());
  char *const hole = static_cast<char *>(base) + kHuge;
  ASSERT_TRUE(os::unmap(hole, kHuge).ok());
  EXPECT_EQ(os::lock_pages(base, 2 * kHuge).code(), GMM_ERROR_SYSTEM);
  // A locked page cannot be dropped by MADV_DONTNEED.
  EXPECT_EQ(madvise(base, kHuge, MADV_DONTNEED), 0);
  EXPECT_TRUE(os::unmap(base, kHuge).ok());
}

TEST(OsMemory, TellsFigures) {
  os::MemoryInfo info;
  ASSERT_TRUE(os::memory_info(&info).ok()) << last_message();
  EXPECT_GT(info.total, uint64_t{64} << 20);
  EXPECT_LE(info.available, info.total);
  EXPECT_TRUE(os::check_available(1, GMM_ERROR_OUT_OF_MEMORY).ok());
  EXPECT_EQ(os::check_available(info.total * 2, GMM_ERROR_OUT_OF_MEMORY).code(), GMM_ERROR_OUT_OF_MEMORY);
}

}  // namespace
}  // namespace gmm
