// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/arena.h"

#include <cerrno>
#include <cinttypes>

#include "base/os_memory.h"

namespace gmm {
// --- Allocation ---------------------------------------------------------------------------------------------------

// Plans the first absent segment.
bool BackupArena::plan_segment_locked(uint64_t limit) {
  if (base_ == nullptr && !reserve_tier_addresses(kSegment, &base_, &reserved_bytes_)) return false;
  const uint64_t all = bytes_ + planned_bytes_;
  uint64_t size = limit > all ? limit - all : 0;
  if (size > kSegment) size = kSegment;
  size &= ~(os::kHugePage - 1);
  if (size == 0) return false;
  uint64_t i = first_absent_;
  while (i < segments_.size() && segments_[i].state != State::kAbsent) ++i;
  if (i == segments_.size() && (i * kSegment == reserved_bytes_ || !segments_.push_back(Segment()))) return false;
  if (!ranges_.add(i * kSegment, size)) return false;
  first_absent_ = i + 1;
  segments_[i] = Segment{State::kPlanned, size};
  planned_bytes_ += size;
  return true;
}

bool BackupArena::allocate(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *offset) {
  LockGuard guard(mutex_);
  for (;;) {
    if (ranges_.allocate(size, hint, offset)) return true;
    if (!plan_segment_locked(limit)) return false;
  }
}

void BackupArena::free(uint64_t offset, uint64_t size) {
  LockGuard guard(mutex_);
  ranges_.free(offset, size);
}

bool BackupArena::plan_free(uint64_t bytes, uint64_t limit, uint64_t *segments) {
  LockGuard guard(mutex_);
  if (bytes > limit) return false;
  while (ranges_.free_bytes() < bytes)
    if (!plan_segment_locked(limit)) return false;
  *segments = segments_.size();
  return true;
}

bool BackupArena::is_ready(uint64_t offset, uint64_t size) {
  LockGuard guard(mutex_);
  for (uint64_t i = offset / kSegment; i * kSegment < offset + size; ++i)
    if (segments_[i].state != State::kReady) return false;
  return true;
}

uint64_t BackupArena::bytes() {
  LockGuard guard(mutex_);
  return bytes_;
}

// --- Backing planned segments -------------------------------------------------------------------------------------

void BackupArena::run_touch(CopyTask *self) {
  TouchTask *task = static_cast<TouchTask *>(self);
  task->error = os::touch_pages(task->base, task->size);
}

// Waits for the tasks. Returns 0 or the errno of one of them.
int BackupArena::end_touch(Touch &touch) {
  int error = 0;
  for (TouchTask &task : touch.tasks) {
    threads_.wait(&task);
    if (task.error != 0) error = task.error;
  }
  touch.segment = kNoSegment;
  return error;
}

uint64_t BackupArena::planned_bytes_of(uint64_t segment) {
  LockGuard guard(mutex_);
  return segment < segments_.size() && segments_[segment].state == State::kPlanned ? segments_[segment].size : 0;
}

// Lets copy threads touch the segment if it is planned. An earlier segment whose place it takes stays planned, and is
// touched again when a range in it is needed.
void BackupArena::begin_touch(Device device, uint64_t segment) {
  Touch &touch = touches_[segment % kAhead];
  const uint64_t size = planned_bytes_of(segment);
  if (size == 0 || touch.segment == segment) return;
  end_touch(touch);
  char *base = base_of(segment);
  MessageGuard message_guard;
  int error = 0;
  if (!os::set_access(base, size, os::Access::kReadWrite).ok()) error = last_native() != 0 ? last_native() : ENOMEM;
  os::prefer_huge_pages(base, size);
  os::keep_from_children(base, size);                                  // a fork need not copy page-locked pages
  os::prefer_node(base, size, core_.backend->host_numa_node(device));  // copies to other nodes are slower
  touch.segment = segment;
  const uint64_t pages = size / os::kHugePage;
  for (uint64_t i = 0; i < kTouchTasks; ++i) {
    TouchTask &task = touch.tasks[i];
    const uint64_t begin = pages * i / kTouchTasks, end = pages * (i + 1) / kTouchTasks;
    task.run = &BackupArena::run_touch;
    task.base = base + begin * os::kHugePage;
    task.size = (end - begin) * os::kHugePage;
    task.error = error;
    if (error == 0 && task.size != 0) threads_.submit(&task);
  }
}

Status BackupArena::make_segment_ready(Device device, uint64_t segment) {
  const uint64_t size = planned_bytes_of(segment);
  if (size == 0) return Status();
  for (uint64_t i = segment; i < segment + kAhead; ++i) begin_touch(device, i);
  if (const int error = end_touch(touches_[segment % kAhead]); error != 0)
    return fail_native(GMM_ERROR_OUT_OF_HOST_MEMORY, error,
                       "Taking the pages of %" PRIu64
                       " bytes for the page-locked arena: %s; free host memory, or set a lower limit by "
                       "gmm_backup_configure() or GMM_BACKUP_ARENA_LIMIT.",
                       kSegment, ErrorText(error).text);
  begin_touch(device, segment + kAhead);
  void *device_pointer = nullptr;
  if (is_page_locked()) GMM_TRY(core_.backend->pin(base_of(segment), size, 0, device, &device_pointer));
  LockGuard guard(mutex_);
  segments_[segment].state = State::kReady;
  bytes_ += size;
  planned_bytes_ -= size;
  return Status();
}

Status BackupArena::make_ready(Device device, uint64_t offset, uint64_t size) {
  if (is_ready(offset, size)) return Status();
  LockGuard guard(growth_mutex_);
  for (uint64_t i = offset / kSegment; i * kSegment < offset + size; ++i) GMM_TRY(make_segment_ready(device, i));
  return Status();
}

Status BackupArena::make_free_ready(Device device, uint64_t bytes, uint64_t limit, bool *fits) {
  LockGuard guard(growth_mutex_);
  uint64_t count = 0;
  *fits = plan_free(bytes, limit, &count);
  Status status;
  for (uint64_t i = 0; *fits && status.ok() && i < count; ++i) status = make_segment_ready(device, i);
  MessageGuard message_guard;
  if (!*fits || !status.ok()) cancel_planned_growing();
  return status;
}

void BackupArena::cancel_planned() {
  LockGuard guard(growth_mutex_);
  cancel_planned_growing();
}

// With growth_mutex_ held. A segment in which another transfer has a range stays planned.
void BackupArena::cancel_planned_growing() {
  for (Touch &touch : touches_)
    if (touch.segment != kNoSegment) end_touch(touch);
  LockGuard guard(mutex_);
  for (uint64_t i = 0; i < segments_.size() && planned_bytes_ != 0; ++i) {
    Segment &segment = segments_[i];
    if (segment.state != State::kPlanned || !ranges_.is_free(i * kSegment, segment.size)) continue;
    if (!ranges_.remove(i * kSegment, segment.size)) continue;  // without host memory it stays planned, which is safe
    MessageGuard message_guard;
    os::reserve_at(base_of(i), segment.size).ignore();  // on a failure the pages stay until the addresses go
    planned_bytes_ -= segment.size;
    segment = Segment();
    if (i < first_absent_) first_absent_ = i;
  }
}

// --- Returning memory to the system -------------------------------------------------------------------------------

uint64_t BackupArena::trim() {
  uint64_t trimmed = 0;
  for (uint64_t i = 0;; ++i) {
    uint64_t size = 0;
    {
      LockGuard guard(mutex_);
      while (i < segments_.size() && (segments_[i].state != State::kReady || is_abandoned_ ||
                                      !ranges_.is_free(i * kSegment, segments_[i].size)))
        ++i;
      if (i >= segments_.size()) return trimmed;
      size = segments_[i].size;
      if (!ranges_.remove(i * kSegment, size)) return trimmed;
      segments_[i].state = State::kLeaving;
    }
    MessageGuard message_guard;
    bool is_leaving = !is_page_locked() || core_.backend->unpin(base_of(i), size).ok();
    if (!is_leaving)
      core_.log.write(LogLevel::kWarning, "%" PRIu64 " bytes of the arena stay page-locked: %s", size, last_message());
    const bool is_unmapped = is_leaving && os::reserve_at(base_of(i), size).ok();
    LockGuard guard(mutex_);
    // A segment that stays locked is free again. Without host memory to note that, its addresses are lost.
    if (!is_leaving) is_leaving = !ranges_.add(i * kSegment, size);
    if (is_leaving) {
      bytes_ -= size;
      if (is_unmapped) trimmed += size;
      segments_[i] = Segment();
      if (i < first_absent_) first_absent_ = i;
    } else {
      segments_[i].state = State::kReady;
    }
  }
}

void BackupArena::clear() {
  cancel_planned();
  LockGuard guard(mutex_);
  if (base_ != nullptr && !is_abandoned_) {
    // One call returns all addresses between two locked segments: 1 TiB has 32,768 segments.
    char *begin = base_;
    char *const end = base_ + reserved_bytes_;
    for (uint64_t i = 0; i < segments_.size() && is_page_locked(); ++i) {
      if (segments_[i].state != State::kReady) continue;
      if (begin < base_of(i)) os::discard(begin, static_cast<size_t>(base_of(i) - begin));
      // A segment that the driver refuses to unlock keeps its pages and addresses, and is offered to the driver again.
      core_.deferred_release.unpin_pages(*core_.backend, base_of(i), segments_[i].size);
      begin = base_of(i) + segments_[i].size;
    }
    if (begin < end) os::discard(begin, static_cast<size_t>(end - begin));
  }
  base_ = nullptr;
  segments_.clear();
  ranges_.clear();
  bytes_ = planned_bytes_ = first_absent_ = 0;
}

}  // namespace gmm
