// SPDX-License-Identifier: Apache-2.0
#include "base/os_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/memory_group.h"
#include "base/process.h"

namespace gmm::os {
namespace {

Status map_failed(const char *what, uint64_t size, int error) {
  const bool is_short = error == ENOMEM;
  return fail_native(is_short ? GMM_ERROR_OUT_OF_HOST_MEMORY : GMM_ERROR_SYSTEM, error,
                     "%s of %" PRIu64 " bytes: the system refused: %s%s.", what, size, ErrorText(error).text,
                     is_short ? "; free memory, or raise RLIMIT_AS (ulimit -v) or vm.max_map_count" : "");
}

Status descriptor_failed(const char *what, int error) {
  const char *advice = error == EMFILE   ? "; raise the limit of open files (ulimit -n)"
                       : error == ENFILE ? "; raise fs.file-max"
                       : error == EBADF  ? "; pass a descriptor that is open"
                                         : "";
  return fail_native(error == EBADF ? GMM_ERROR_INVALID_HANDLE : GMM_ERROR_SYSTEM, error,
                     "%s: the system refused: %s%s.", what, ErrorText(error).text, advice);
}

Status range_failed(const char *what, const void *base, uint64_t size, int error, const char *advice = "") {
  return fail_native(GMM_ERROR_SYSTEM, error, "%s %" PRIu64 " bytes at %p: the system refused: %s%s.", what, size, base,
                     ErrorText(error).text, advice);
}

// Finds "Name:   123 kB" and returns bytes.
bool find_kilobytes(const char *text, const char *name, uint64_t *out) {
  const char *line = std::strstr(text, name);
  if (line == nullptr) return false;
  *out = std::strtoull(line + std::strlen(name), nullptr, 10) << 10;
  return true;
}

int protection_of(Access access) {
  return access == Access::kNone ? PROT_NONE : access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
}

bool commit_is_strict() {
  uint64_t mode = 0;
  return read_number("/proc/sys/vm/overcommit_memory", &mode) && mode == 2;
}

// Whether a control group limits the machine's memory. memory_info() updates it, so a limit that is set later is seen
// at the next call.
enum class Group : int32_t { kUnknown, kUnlimited, kLimited };
std::atomic<Group> g_group{Group::kUnknown};

void apply_group_limit(const char *root, MemoryInfo *info) {
  const GroupLimit group = memory_group_limit(root);
  const bool limited = group.limit != UINT64_MAX;
  g_group.store(limited ? Group::kLimited : Group::kUnlimited, std::memory_order_relaxed);
  if (group.limit < info->total) info->total = group.limit;
  if (group.left < info->available) info->available = group.left;
}

}  // namespace

Status memory_file_sparse(const char *name, uint64_t size, int32_t *out) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return descriptor_failed("Creating a memory file", errno);
  // Past this limit the kernel also sends SIGXFSZ, which ends a program that does not expect it.
  rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &limit);
  int error = size > limit.rlim_cur ? EFBIG : ftruncate(fd, static_cast<off_t>(size)) != 0 ? errno : 0;
  if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) error = errno;
  if (error == 0) {
    *out = fd;
    return Status();
  }
  close(fd);
  if (size > limit.rlim_cur)
    return fail_native(GMM_ERROR_OUT_OF_MEMORY, error,
                       "A memory file of %" PRIu64 " bytes: RLIMIT_FSIZE, the limit of a file's size, is %" PRIu64
                       " bytes; raise it (ulimit -f, or LimitFSIZE= of systemd).",
                       size, static_cast<uint64_t>(limit.rlim_cur));
  if (error == EFBIG || error == EINVAL)
    return fail_native(GMM_ERROR_SIZE_OVERFLOW, error,
                       "A memory file of %" PRIu64 " bytes: a file cannot be that large; request less.", size);
  return descriptor_failed("Creating a memory file", error);
}

Status memory_file_commit(int32_t fd, uint64_t offset, uint64_t size) {
  if (size == 0 || !commit_is_strict()) return Status();
  int error = 0;
  do {
    error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return Status();
  return fail_native(
      GMM_ERROR_OUT_OF_MEMORY, error,
      "A memory file of %" PRIu64 " bytes: the system has too little memory; free memory or request less.", size);
}

Status memory_file_create(const char *name, uint64_t size, int32_t *out) {
  int32_t fd = -1;
  GMM_TRY(memory_file_sparse(name, size, &fd));
  const Status status = memory_file_commit(fd, 0, size);
  if (status.ok())
    *out = fd;
  else
    close(fd);
  return status;
}

Status memory_file_drop(int32_t fd, uint64_t offset, uint64_t size) {
  while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(size)) != 0)
    if (errno != EINTR) return descriptor_failed("Returning pages of a memory file", errno);
  return Status();
}

Status memory_file_check(int32_t fd, uint64_t size) {
  struct stat state;
  if (fstat(fd, &state) != 0) return descriptor_failed("Reading the size of a memory file", errno);
  const uint64_t actual = static_cast<uint64_t>(state.st_size);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail_native(
        GMM_ERROR_IPC_INVALID_HANDLE, seals < 0 ? errno : 0,
        "File descriptor %" PRId32 " is not a memory file sealed against shrinking; pass one that gmm exported.", fd);
  if (actual < size)
    return fail(GMM_ERROR_INVALID_SIZE,
                "File descriptor %" PRId32 " holds %" PRIu64 " bytes, %" PRIu64
                " were requested; request no more than was exported.",
                fd, actual, size);
  return Status();
}

Status duplicate(int32_t fd, int32_t *out) {
  // The number is at least 3: a program that closed its standard streams must not write its log into memory.
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return descriptor_failed("Duplicating a file descriptor", errno);
  *out = copy;
  return Status();
}

Status share(int32_t fd, int32_t *out) {
  // A lock lives as long as its open file description: in duplicates, in mappings and in other processes.
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%" PRId32, fd);
  int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened >= 0 && opened < 3) {
    const int copy = fcntl(opened, F_DUPFD_CLOEXEC, 3);
    close(opened);
    opened = copy;
  }
  if (opened < 0) return duplicate(fd, out);  // there is no /proc
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  (void)fcntl(opened, F_OFD_SETLK, &lock);  // without it nobody can tell that the file is shared
  *out = opened;
  return Status();
}

bool is_shared(int32_t fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Status close_file(int32_t fd) {
  // After EINTR Linux has closed the descriptor.
  if (close(fd) != 0 && errno != EINTR) return descriptor_failed("Closing a file descriptor", errno);
  return Status();
}

int file_facts(int32_t fd, FileFacts *out) {
  struct stat state;
  if (fstat(fd, &state) != 0) return errno;
  out->is_file = S_ISREG(state.st_mode);
  out->size = out->is_file ? static_cast<uint64_t>(state.st_size) : 0;
  return 0;
}

int seal_against_shrinking(int32_t fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && ((seals & F_SEAL_SHRINK) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) ? 0 : errno;
}

Status reserve(uint64_t size, uint64_t alignment, void **out) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *memory = mmap(nullptr, size, PROT_NONE, kFlags, -1, 0);
  if (memory == MAP_FAILED) return map_failed("Reserving addresses", size, errno);
  if ((reinterpret_cast<uintptr_t>(memory) & (alignment - 1)) == 0) {
    *out = memory;
    return Status();
  }
  munmap(memory, size);
  if (size > UINT64_MAX - alignment) return map_failed("Reserving addresses", size, ENOMEM);
  const uint64_t padded = size + alignment;
  memory = mmap(nullptr, padded, PROT_NONE, kFlags, -1, 0);
  if (memory == MAP_FAILED) return map_failed("Reserving addresses", size, errno);
  char *start = static_cast<char *>(memory);
  const uint64_t before = (alignment - (reinterpret_cast<uintptr_t>(start) & (alignment - 1))) & (alignment - 1);
  char *base = start + before;
  const uint64_t after = padded - before - size;
  if (before != 0) munmap(start, before);
  if (after != 0) munmap(base + size, after);
  *out = base;
  return Status();
}

Status reserve_free(void *base, uint64_t size) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *const memory = mmap(base, size, PROT_NONE, kFlags, -1, 0);
  if (memory == base) return Status();
  const bool is_taken = memory != MAP_FAILED || errno == EEXIST;  // before Linux 4.17 it is put elsewhere
  if (memory != MAP_FAILED) munmap(memory, size);
  if (!is_taken) return map_failed("Reserving addresses", size, errno);
  return fail(GMM_ERROR_OVERLAP, "Something lies in the %" PRIu64 " bytes of addresses from %p on.", size, base);
}

Status map_file_at(void *base, uint64_t size, int32_t fd, uint64_t offset, Access access) {
  const int protection = protection_of(access);
  if (mmap(base, size, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset)) == MAP_FAILED) {
    if (errno == EBADF) return descriptor_failed("Mapping a memory file", EBADF);
    return map_failed("Mapping a memory file", size, errno);
  }
  return Status();
}

Status reserve_at(void *base, uint64_t size) {
  if (mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    return map_failed("Unmapping memory from a reserved range", size, errno);
  return Status();
}

Status map_file(uint64_t size, uint64_t alignment, int32_t fd, uint64_t offset, Access access, void **out) {
  void *base = nullptr;
  GMM_TRY(reserve(size, alignment, &base));
  if (Status status = map_file_at(base, size, fd, offset, access); !status.ok()) {
    munmap(base, size);
    return status;
  }
  *out = base;
  return Status();
}

Status map_anonymous(uint64_t size, uint64_t alignment, void **out) {
  void *base = nullptr;
  GMM_TRY(reserve(size, alignment, &base));
  if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(base, size);
    return map_failed("Mapping anonymous memory", size, error);
  }
  *out = base;
  return Status();
}

void *map_sparse(uint64_t size) {
  void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void *map_page_of_process() {
  void *page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, page_size(), MADV_WIPEONFORK) == 0) return page;
  munmap(page, page_size());
  return nullptr;
}

Status set_access(void *base, uint64_t size, Access access) {
  if (mprotect(base, size, protection_of(access)) == 0) return Status();
  return range_failed("Access to", base, size, errno, "; map the range first, or raise vm.max_map_count");
}

Status unmap(void *base, uint64_t size) {
  return munmap(base, size) == 0 ? Status() : range_failed("Unmapping", base, size, errno);
}

Status lock_pages(void *base, uint64_t size) {
  if (mlock(base, size) == 0) return Status();
  const int error = errno;
  // A hole in the range and the limit both give ENOMEM. mincore() tells them apart.
  bool mapped = true;
  for (uint64_t offset = 0; offset < size && mapped; offset += kHugePage) {
    unsigned char present[512];
    const uint64_t step = size - offset < kHugePage ? size - offset : kHugePage;
    if (step / page_size() > sizeof present) break;
    mapped = mincore(static_cast<char *>(base) + offset, step, present) == 0 || errno != ENOMEM;
  }
  // Before a hole mlock() has locked the pages in front of it. With EAGAIN it has locked all of them. Past the limit it
  // locks nothing, and an unlock would undo older locks.
  if (!mapped || error == EAGAIN) munlock(base, size);
  if (!mapped)
    return fail_native(GMM_ERROR_SYSTEM, error,
                       "Page-locking %" PRIu64
                       " bytes at %p: a part of the range is not mapped; pass memory that is mapped as a "
                       "whole.",
                       size, base);
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return fail_native(GMM_ERROR_SYSTEM, error,
                     "Page-locking %" PRIu64 " bytes at %p: the system refused (%s) with RLIMIT_MEMLOCK at %" PRIu64
                     " bytes; raise it (ulimit -l, or LimitMEMLOCK= of systemd), or lock less.",
                     size, base, ErrorText(error).text, static_cast<uint64_t>(limit.rlim_cur));
}

Status unlock_pages(void *base, uint64_t size) {
  return munlock(base, size) == 0 ? Status() : range_failed("Unlocking", base, size, errno);
}

void discard(void *base, uint64_t size) { munmap(base, size); }

void prefer_huge_pages(void *base, uint64_t size) { madvise(base, size, MADV_HUGEPAGE); }

void keep_from_children(void *base, uint64_t size) { madvise(base, size, MADV_DONTFORK); }

// mbind(2) without libnuma.
void prefer_node(void *base, uint64_t size, int32_t node) {
#if defined(SYS_mbind)
  constexpr int kPreferred = 1;  // MPOL_PREFERRED
  constexpr int32_t kBits = static_cast<int32_t>(8 * sizeof(unsigned long));
  unsigned long mask[16] = {};
  if (node < 0 || node >= kBits * 16) return;
  mask[node / kBits] |= 1ul << (node % kBits);
  (void)syscall(SYS_mbind, base, size, kPreferred, mask, sizeof mask * 8, 0);
#endif
}

void drop_pages(void *base, uint64_t size) { madvise(base, size, MADV_DONTNEED); }

int touch_pages(void *base, uint64_t size) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which old headers lack
  while (madvise(base, size, kPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    // A kernel before 5.14.
    char *const bytes = static_cast<char *>(base);
    for (uint64_t at = 0; at < size; at += page_size()) __atomic_fetch_or(bytes + at, 0, __ATOMIC_RELAXED);
    return 0;
  }
  return 0;
}

Status populate_pages(void *base, uint64_t size) {
  const int error = touch_pages(base, size);
  if (error == 0) return Status();
  return fail_native(GMM_ERROR_OUT_OF_MEMORY, error,
                     "%" PRIu64 " bytes at %p: the system has no pages for all of them (%s); request less.", size, base,
                     ErrorText(error).text);
}

Status memory_info(MemoryInfo *out, const char *root) {
  char path[PATH_MAX], text[4096];
  MemoryInfo info;
  std::snprintf(path, sizeof path, "%s/proc/meminfo", root);
  if (const int error = read_small_file(path, text, sizeof text); error != 0) {
    if (error == EMFILE || error == ENFILE) return descriptor_failed("Reading the machine's memory", error);
    return fail_native(GMM_ERROR_SYSTEM, error,
                       "Reading the machine's memory: /proc/meminfo cannot be read; mount /proc.");
  }
  if (!find_kilobytes(text, "MemTotal:", &info.total) || !find_kilobytes(text, "MemAvailable:", &info.available))
    return fail(GMM_ERROR_SYSTEM,
                "Reading the machine's memory: /proc/meminfo does not tell it; run on Linux 3.14 or newer.");
  apply_group_limit(root, &info);
  *out = info;
  return Status();
}

Status check_available(uint64_t size, gmm_result code) {
  // One system call returns the memory that is not even used for caches, which mostly suffices.
  struct sysinfo state;
  if (g_group.load(std::memory_order_relaxed) == Group::kUnlimited && sysinfo(&state) == 0 &&
      size <= static_cast<uint64_t>(state.freeram) * state.mem_unit)
    return Status();
  MemoryInfo info;
  {
    // If the system cannot be asked (no /proc, no descriptor left), the shortage cannot be foreseen.
    MessageGuard message_guard;
    if (!memory_info(&info).ok()) return Status();
  }
  if (size <= info.available) return Status();
  return fail(code,
              "%" PRIu64 " bytes: the machine has %" PRIu64 " of %" PRIu64 " available; free memory or request less.",
              size, info.available, info.total);
}

uint64_t page_size() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace gmm::os
