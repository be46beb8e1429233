// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_card.h"

#include <errno.h>
#include <fcntl.h>
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

uint64_t identify(int32_t process, uint64_t start) {
  return static_cast<uint64_t>(process) << 32 | (start & UINT32_MAX);
}

}  // namespace

bool HostCard::has_ended(uint64_t process) {
  const int32_t number = static_cast<int32_t>(process >> 32);
  uint64_t start = 0;
  const int error = process_start_time(number, &start);
  return error == ESRCH || (error == 0 && identify(number, start) != process);
}

Status HostCard::open(const char *path, uint64_t *memory) {
  uint64_t start = 0;
  if (const int error = process_start_time(process_number(), &start); error != 0) return card_failure(error, path);
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return card_failure(errno, path);
  struct stat status;
  int error = ::fstat(fd, &status) != 0 ? errno : 0;
  // A file that grows reads as zeros, so two processes may do it.
  if (error == 0 && static_cast<uint64_t>(status.st_size) < sizeof(File) && ::ftruncate(fd, sizeof(File)) != 0)
    error = errno;
  void *mapped = MAP_FAILED;
  if (error == 0) {
    mapped = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) return card_failure(error, path);
  file_ = static_cast<File *>(mapped);
  uint64_t said = 0;
  if (!file_->memory.compare_exchange_strong(said, *memory, std::memory_order_relaxed)) *memory = said;
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
