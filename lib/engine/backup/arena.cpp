// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/arena.h"

#include <cerrno>
#include <cinttypes>

#include "base/os_memory.h"

namespace gmm {
// --- Allocation ---------------------------------------------------------------------------------------------------

bool BackupArena::reserve_addresses_locked() {
  if (base_ != nullptr) return true;
  MessageGuard message_guard;
  os::MemoryInfo info;
  if (!os::memory_info(&info).ok()) return false;
  uint64_t size = (info.total + kSegment - 1) / kSegment * kSegment;
  if (size > kMaxTierAddresses) size = kMaxTierAddresses;
  const uint64_t count = size / kSegment;
  void *base = nullptr;
  if (!segments_.reserve(count) || !os::reserve(size, os::kHugePage, &base).ok()) return false;
  segments_.clear();
  for (uint64_t i = 0; i < count; ++i) segments_.push_back_reserved(Segment());
  base_ = static_cast<char *>(base);
  return true;
}

// Plans the first absent segment.
bool BackupArena::plan_segment_locked(uint64_t limit) {
  if (!reserve_addresses_locked()) return false;
  const uint64_t all = bytes_ + planned_bytes_;
  uint64_t size = limit > all ? limit - all : 0;
  if (size > kSegment) size = kSegment;
  size &= ~(os::kHugePage - 1);
  if (size == 0) return false;
  for (uint64_t i = first_absent_; i < segments_.size(); ++i) {
    if (segments_[i].state != State::kAbsent) continue;
    if (!ranges_.add(i * kSegment, size)) return false;
    first_absent_ = i + 1;
    segments_[i] = Segment{State::kPlanned, size};
    planned_bytes_ += size;
    return true;
  }
  return false;
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

bool BackupArena::plan_free(uint64_t bytes, uint64_t limit) {
  LockGuard guard(mutex_);
  if (bytes > limit) return false;
  while (ranges_.free_bytes() < bytes)
    if (!plan_segment_locked(limit)) return false;
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

BackupArena::Touch *BackupArena::find_touch(uint64_t segment) {
  for (Touch &touch : touches_)
    if (touch.segment == segment) return &touch;
  return nullptr;
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

// The first planned segment among the next ones that no task touches; kNoSegment: none.
uint64_t BackupArena::next_untouched(uint64_t from, uint64_t *size) {
  LockGuard guard(mutex_);
  for (uint64_t i = from; i < segments_.size() && i < from + 2 * kAhead; ++i) {
    if (segments_[i].state != State::kPlanned || find_touch(i) != nullptr) continue;
    *size = segments_[i].size;
    return i;
  }
  return kNoSegment;
}

// Lets copy threads touch planned segments from this one on, in all places that are unused.
void BackupArena::touch_ahead(Device device, uint64_t from) {
  for (Touch &touch : touches_) {
    if (touch.segment != kNoSegment) continue;
    uint64_t size = 0;
    const uint64_t segment = next_untouched(from, &size);
    if (segment == kNoSegment) return;
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
}

// Ends touches of earlier segments; when all places are still in use, also one of a later segment. The
// touched memory stays planned, and is touched again when a range in it is needed.
void BackupArena::make_place_for_touch(uint64_t segment) {
  if (find_touch(segment) != nullptr) return;
  for (Touch &touch : touches_)
    if (touch.segment != kNoSegment && touch.segment < segment) end_touch(touch);
  if (find_touch(kNoSegment) == nullptr) end_touch(touches_[0]);
}

Status BackupArena::finish_touch(uint64_t segment) {
  const int error = end_touch(*find_touch(segment));  // make_place_for_touch() left a place, and touch_ahead() took it
  if (error == 0) return Status();
  return fail_native(GMM_ERROR_OUT_OF_HOST_MEMORY, error,
                     "Taking the pages of %" PRIu64
                     " bytes for the page-locked arena: %s; free host memory, or set a lower limit by "
                     "gmm_backup_configure() or GMM_BACKUP_ARENA_LIMIT.",
                     kSegment, ErrorText(error).text);
}

Status BackupArena::make_segment_ready(Device device, uint64_t segment) {
  uint64_t size = 0;
  {
    LockGuard guard(mutex_);
    if (segments_[segment].state == State::kReady) return Status();
    size = segments_[segment].size;
  }
  make_place_for_touch(segment);
  touch_ahead(device, segment);
  GMM_TRY(finish_touch(segment));
  touch_ahead(device, segment + 1);
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

Status BackupArena::make_all_ready(Device device) {
  for (uint64_t i = 0;; ++i) {
    {
      LockGuard guard(mutex_);
      while (i < segments_.size() && segments_[i].state != State::kPlanned) ++i;
      if (i == segments_.size()) return Status();
    }
    GMM_TRY(make_segment_ready(device, i));
  }
}

Status BackupArena::make_free_ready(Device device, uint64_t bytes, uint64_t limit, bool *fits) {
  LockGuard guard(growth_mutex_);
  *fits = plan_free(bytes, limit);
  const Status status = *fits ? make_all_ready(device) : Status();
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
    char *const end = base_of(segments_.size());
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
