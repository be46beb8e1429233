// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/pageable.h"

#include <sys/mman.h>

#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint64_t kStep = uint64_t{64} << 20;
constexpr uint64_t kMostAddresses = uint64_t{8} << 40;

}  // namespace

// With the lock held.
bool BackupPageable::open_more(uint64_t size) {
  MessageGuard keep;
  if (base_ == nullptr) {
    os::MemoryInfo info;
    if (!os::memory_info(&info).ok()) return false;
    uint64_t wanted = (info.total + kStep - 1) / kStep * kStep;
    if (wanted > kMostAddresses) wanted = kMostAddresses;
    void *base = nullptr;
    if (!os::reserve(wanted, os::kHugePage, &base).ok()) return false;
    base_ = static_cast<char *>(base);
    reserved_ = wanted;
    madvise(base, wanted, MADV_DONTFORK);  // a hint: a child has no use for it
  }
  const uint64_t step = size > kStep ? (size + os::kHugePage - 1) & ~(os::kHugePage - 1) : kStep;
  if (step > reserved_ - opened_) return false;
  char *base = base_ + opened_;
  if (!os::set_access(base, step, os::Access::kReadWrite).ok()) return false;
  madvise(base, step, MADV_HUGEPAGE);  // a hint
  if (!room_.add(opened_, step)) return false;
  opened_ += step;
  return true;
}

bool BackupPageable::take(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *where) {
  LockGuard guard(mutex_);
  if (room_.taken_bytes() > limit || size > limit - room_.taken_bytes()) return false;
  while (!room_.take(size, hint, where))
    if (!open_more(size)) return false;
  return true;
}

void BackupPageable::give(uint64_t where, uint64_t size) {
  LockGuard guard(mutex_);
  madvise(base_ + where, size, MADV_DONTNEED);  // else the pages stay until they are used again
  room_.give(where, size);
}

uint64_t BackupPageable::bytes() {
  LockGuard guard(mutex_);
  return room_.taken_bytes();
}

void BackupPageable::clear() {
  LockGuard guard(mutex_);
  if (base_ != nullptr && !abandoned_.load(std::memory_order_relaxed)) munmap(base_, reserved_);
  base_ = nullptr;
  reserved_ = opened_ = 0;
  room_.clear();
}

}  // namespace gmm
