// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/pageable.h"

#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint64_t kStep = uint64_t{64} << 20;

}  // namespace

bool BackupPageable::open_more_locked(uint64_t size) {
  MessageGuard message_guard;
  if (base_ == nullptr) {
    os::MemoryInfo info;
    if (!os::memory_info(&info).ok()) return false;
    uint64_t wanted = (info.total + kStep - 1) / kStep * kStep;
    if (wanted > kMaxTierAddresses) wanted = kMaxTierAddresses;
    void *base = nullptr;
    if (!os::reserve(wanted, os::kHugePage, &base).ok()) return false;
    base_ = static_cast<char *>(base);
    reserved_bytes_ = wanted;
    os::keep_from_children(base, wanted);  // a child of fork() never reads it
  }
  const uint64_t step = size > kStep ? (size + os::kHugePage - 1) & ~(os::kHugePage - 1) : kStep;
  if (step > reserved_bytes_ - opened_bytes_) return false;
  char *base = base_ + opened_bytes_;
  if (!os::set_access(base, step, os::Access::kReadWrite).ok()) return false;
  os::prefer_huge_pages(base, step);
  if (!ranges_.add(opened_bytes_, step)) return false;
  opened_bytes_ += step;
  return true;
}

bool BackupPageable::allocate(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *offset) {
  LockGuard guard(mutex_);
  if (ranges_.allocated_bytes() > limit || size > limit - ranges_.allocated_bytes()) return false;
  while (!ranges_.allocate(size, hint, offset))
    if (!open_more_locked(size)) return false;
  return true;
}

void BackupPageable::free(uint64_t offset, uint64_t size) {
  LockGuard guard(mutex_);
  os::drop_pages(base_ + offset, size);
  ranges_.free(offset, size);
}

uint64_t BackupPageable::bytes() {
  LockGuard guard(mutex_);
  return ranges_.allocated_bytes();
}

void BackupPageable::clear() {
  LockGuard guard(mutex_);
  if (base_ != nullptr && !is_abandoned_.load(std::memory_order_relaxed)) os::discard(base_, reserved_bytes_);
  base_ = nullptr;
  reserved_bytes_ = opened_bytes_ = 0;
  ranges_.clear();
}

}  // namespace gmm
