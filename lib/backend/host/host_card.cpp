// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_card.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"

namespace gmm {
namespace {

Status card_failure(int error, const char *path) {
  return fail_native(GMM_ERROR_SYSTEM, error, "GMM_HOST_CARD=%.256s: %s; name a file that can be made and written.",
                     path, ErrorText(error).text);
}

Status other_file(const char *path) {
  return fail(GMM_ERROR_INVALID_VALUE, "GMM_HOST_CARD=%.256s: the file is something else; name one that is not there.",
              path);
}

constexpr uint64_t kMagic = 0x31647261636d6d67;  // "gmmcard1"
constexpr uint64_t kStart = (uint64_t{1} << 24) - 1, kNamespace = (uint64_t{1} << 18) - 1;

// A process by its number, the last bits of its start, and those of the namespace in which it has this number.
uint64_t identify(int32_t process, uint64_t start) {
  struct stat processes = {};
  if (::stat("/proc/self/ns/pid", &processes) != 0) processes.st_ino = 0;
  return static_cast<uint64_t>(process) << 42 | (start & kStart) << 18 | (processes.st_ino & kNamespace);
}

}  // namespace

// Of a process of another namespace nobody here can tell: it counts as living.
bool HostCard::has_ended(uint64_t process) {
  const int32_t number = static_cast<int32_t>(process >> 42);
  if ((process & kNamespace) != (identify(0, 0) & kNamespace)) return false;
  uint64_t start = 0;
  const int error = process_start_time(number, &start);
  return error == ESRCH || (error == 0 && identify(number, start) != process);
}

Status HostCard::open(const char *path, uint64_t *memory) {
  uint64_t start = 0;
  if (const int error = process_start_time(process_number(), &start); error != 0) return card_failure(error, path);
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return card_failure(errno, path);
  const Status mapped = map(fd, path, memory);
  ::flock(fd, LOCK_UN);  // the mapping would keep it
  ::close(fd);
  GMM_TRY(mapped);
  const uint64_t self = identify(process_number(), start);
  for (Entry &entry : file_->entries) {
    uint64_t before = entry.process.load(std::memory_order_relaxed);
    if ((before != 0 && !has_ended(before)) ||
        !entry.process.compare_exchange_strong(before, self, std::memory_order_acq_rel))
      continue;
    for (std::atomic<uint64_t> &taken : entry.taken) taken.store(0, std::memory_order_relaxed);
    own_ = &entry;
    return Status();
  }
  close();
  return fail(GMM_ERROR_BUSY, "GMM_HOST_CARD=%.256s: %u contexts use it, which is the most.", path, kEntries);
}

// A new file gets its pages at once, as a write to a page that the disk has no place for would end the process.
Status HostCard::map(int32_t fd, const char *path, uint64_t *memory) {
  struct stat status;
  while (::flock(fd, LOCK_EX) != 0)
    if (errno != EINTR) return card_failure(errno, path);
  if (::fstat(fd, &status) != 0) return card_failure(errno, path);
  const bool is_new = status.st_size == 0;
  if (is_new) {
    if (const int error = ::posix_fallocate(fd, 0, sizeof(File)); error != 0)
      return card_failure(::ftruncate(fd, 0) == 0 ? error : errno, path);
  } else if (status.st_size != sizeof(File)) {
    return other_file(path);
  }
  void *mapped = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return card_failure(errno, path);
  file_ = static_cast<File *>(mapped);
  if (is_new) {
    file_->magic = kMagic;
    file_->memory = *memory;
  } else if (file_->magic != kMagic) {
    close();
    return other_file(path);
  }
  *memory = file_->memory;
  return Status();
}

void HostCard::close() {
  if (own_ != nullptr) {
    for (std::atomic<uint64_t> &taken : own_->taken) taken.store(0, std::memory_order_relaxed);
    own_->process.store(0, std::memory_order_release);
  }
  if (file_ != nullptr) ::munmap(file_, sizeof(File));
  own_ = nullptr;
  file_ = nullptr;
}

uint64_t HostCard::taken(uint32_t device) const {
  uint64_t sum = 0;
  for (const Entry &entry : file_->entries) {
    const uint64_t process = entry.process.load(std::memory_order_acquire);
    const uint64_t taken = entry.taken[device].load(std::memory_order_seq_cst);
    if (process != 0 && taken != 0 && (&entry == own_ || !has_ended(process))) sum += taken;
  }
  return sum;
}

// First it counts, then it looks: of two that do not fit together at least one sees the other.
bool HostCard::take(uint32_t device, uint64_t size, uint64_t memory) {
  own_->taken[device].fetch_add(size, std::memory_order_seq_cst);
  if (taken(device) <= memory) return true;
  give_back(device, size);
  return false;
}

}  // namespace gmm
