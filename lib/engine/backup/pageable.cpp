// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/pageable.h"

#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint64_t kStep = uint64_t{64} << 20;  // more than any chunk

}  // namespace

bool BackupPageable::open_more_locked() {
  MessageGuard message_guard;
  if (base_ == nullptr) {
    if (!reserve_tier_addresses(kStep, &base_, &reserved_bytes_)) return false;
    os::prefer_huge_pages(base_, reserved_bytes_);
    os::keep_from_children(base_, reserved_bytes_);  // a child of fork() never reads it
  }
  if (opened_bytes_ == reserved_bytes_ || !os::set_access(base_ + opened_bytes_, kStep, os::Access::kReadWrite).ok() ||
      !ranges_.add(opened_bytes_, kStep))
    return false;
  opened_bytes_ += kStep;
  return true;
}

bool BackupPageable::allocate(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *offset) {
  LockGuard guard(mutex_);
  if (ranges_.allocated_bytes() > limit || size > limit - ranges_.allocated_bytes()) return false;
  while (!ranges_.allocate(size, hint, offset))
    if (!open_more_locked()) return false;
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
