// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>

#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint64_t kMostAddresses = uint64_t{8} << 40;

// mbind(2) without libnuma. A hint: memory from elsewhere is only slower.
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

int touch_pages(char *base, uint64_t size) {
#if defined(MADV_POPULATE_WRITE)
  for (;;) {
    if (madvise(base, size, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    break;  // a kernel before 5.14
  }
#endif
  const uint64_t page = os::page_size();
  for (uint64_t offset = 0; offset < size; offset += page) *static_cast<volatile char *>(base + offset) = 0;
  return 0;
}

}  // namespace

void BackupArena::touch(BackupTask *self) {
  TouchTask *task = static_cast<TouchTask *>(self);
  task->error = touch_pages(task->base, task->size);
}

// With the lock held.
bool BackupArena::reserve_addresses() {
  if (base_ != nullptr) return true;
  MessageGuard keep;
  os::MemoryInfo info;
  if (!os::memory_info(&info).ok()) return false;
  uint64_t size = (info.total + kSegment - 1) / kSegment * kSegment;
  if (size > kMostAddresses) size = kMostAddresses;
  const uint64_t count = size / kSegment;
  void *base = nullptr;
  if (!segments_.reserve(count) || !os::reserve(size, os::kHugePage, &base).ok()) return false;
  segments_.clear();
  for (uint64_t i = 0; i < count; ++i) segments_.push_back_reserved(Segment());
  base_ = static_cast<char *>(base);
  reserved_ = size;
  return true;
}

// The first absent segment, with the lock held.
bool BackupArena::plan_segment(uint64_t limit) {
  if (!reserve_addresses()) return false;
  const uint64_t all = bytes_ + planned_;
  uint64_t size = limit > all ? limit - all : 0;
  if (size > kSegment) size = kSegment;
  size &= ~(os::kHugePage - 1);
  if (size == 0) return false;
  for (uint64_t i = first_absent_; i < segments_.size(); ++i) {
    if (segments_[i].state != State::kAbsent) continue;
    if (!room_.add(i * kSegment, size)) return false;
    first_absent_ = i + 1;
    segments_[i] = Segment{State::kPlanned, size};
    planned_ += size;
    return true;
  }
  return false;
}

bool BackupArena::take(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *where) {
  LockGuard guard(mutex_);
  for (;;) {
    if (room_.take(size, hint, where)) return true;
    if (!plan_segment(limit)) return false;
  }
}

void BackupArena::give(uint64_t where, uint64_t size) {
  LockGuard guard(mutex_);
  room_.give(where, size);
}

bool BackupArena::plan_free(uint64_t bytes, uint64_t limit) {
  LockGuard guard(mutex_);
  if (bytes > limit) return false;
  while (room_.free_bytes() < bytes)
    if (!plan_segment(limit)) return false;
  return true;
}

bool BackupArena::is_ready(uint64_t where, uint64_t size) {
  LockGuard guard(mutex_);
  for (uint64_t i = where / kSegment; i * kSegment < where + size; ++i)
    if (segments_[i].state != State::kReady) return false;
  return true;
}

// Starts to touch planned segments from this one on, a few ahead of what is needed now.
void BackupArena::touch_ahead(Device device, uint64_t from) {
  for (Touch &touch : touches_) {
    if (touch.segment != UINT64_MAX) continue;
    uint64_t segment = UINT64_MAX, size = 0;
    {
      LockGuard guard(mutex_);
      for (uint64_t i = from; i < segments_.size() && i < from + 2 * kAhead; ++i) {
        bool taken = segments_[i].state != State::kPlanned;
        for (const Touch &other : touches_) taken = taken || other.segment == i;
        if (taken) continue;
        segment = i;
        size = segments_[i].size;
        break;
      }
    }
    if (segment == UINT64_MAX) return;
    char *base = base_of(segment);
    MessageGuard keep;
    int error = 0;
    if (!os::set_access(base, size, os::Access::kReadWrite).ok()) error = last_native() != 0 ? last_native() : ENOMEM;
    madvise(base, size, MADV_HUGEPAGE);  // a hint
    madvise(base, size, MADV_DONTFORK);  // a hint: a fork need not copy locked pages
    prefer_node(base, size, core_.backend->host_numa_node(device));
    touch.segment = segment;
    const uint64_t pages = size / os::kHugePage;
    for (uint64_t i = 0; i < kTouchTasks; ++i) {
      TouchTask &task = touch.tasks[i];
      const uint64_t begin = pages * i / kTouchTasks, end = pages * (i + 1) / kTouchTasks;
      task.run = &BackupArena::touch;
      task.base = base + begin * os::kHugePage;
      task.size = (end - begin) * os::kHugePage;
      task.error = error;
      if (error == 0 && task.size != 0) threads_.submit(&task);
    }
  }
}

// Waits until the segment is touched.
Status BackupArena::finish_touch(uint64_t segment) {
  for (Touch &touch : touches_) {
    if (touch.segment != segment) continue;
    int error = 0;
    for (TouchTask &task : touch.tasks) {
      threads_.wait(&task);
      if (task.error != 0) error = task.error;
    }
    touch.segment = UINT64_MAX;
    if (error == 0) return Status();
    char text[96];
    return fail_native(GMM_ERROR_OUT_OF_HOST_MEMORY, error,
                       "Taking the pages of %" PRIu64 " bytes for contents: %s; free memory, or set a lower limit.",
                       kSegment, system_error_text(error, text, sizeof text));
  }
  return fail(GMM_ERROR_SYSTEM, "A segment of the arena was not touched.");
}

Status BackupArena::make_segment_ready(Device device, uint64_t segment) {
  uint64_t size = 0;
  {
    LockGuard guard(mutex_);
    if (segments_[segment].state == State::kReady) return Status();
    size = segments_[segment].size;
  }
  bool is_touching = false;
  for (Touch &touch : touches_) is_touching = is_touching || touch.segment == segment;
  if (!is_touching) {
    // Those of other stretches make way.
    for (Touch &touch : touches_)
      if (touch.segment != UINT64_MAX && touch.segment < segment) {
        for (TouchTask &task : touch.tasks) threads_.wait(&task);
        touch.segment = UINT64_MAX;
      }
    bool full = true;
    for (Touch &touch : touches_) full = full && touch.segment != UINT64_MAX;
    if (full) {
      for (TouchTask &task : touches_[0].tasks) threads_.wait(&task);
      touches_[0].segment = UINT64_MAX;
    }
  }
  touch_ahead(device, segment);
  GMM_TRY(finish_touch(segment));
  touch_ahead(device, segment + 1);
  void *device_pointer = nullptr;
  if (locks()) GMM_TRY(core_.backend->pin(base_of(segment), size, 0, device, &device_pointer));
  LockGuard guard(mutex_);
  segments_[segment].state = State::kReady;
  bytes_ += size;
  planned_ -= size;
  return Status();
}

Status BackupArena::make_ready(Device device, uint64_t where, uint64_t size) {
  for (uint64_t i = where / kSegment; i * kSegment < where + size; ++i) GMM_TRY(make_segment_ready(device, i));
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

void BackupArena::cancel_planned() {
  for (Touch &touch : touches_) {
    if (touch.segment == UINT64_MAX) continue;
    for (TouchTask &task : touch.tasks) threads_.wait(&task);
    touch.segment = UINT64_MAX;
  }
  LockGuard guard(mutex_);
  for (uint64_t i = 0; i < segments_.size() && planned_ != 0; ++i) {
    Segment &segment = segments_[i];
    if (segment.state != State::kPlanned || !room_.is_free(i * kSegment, segment.size)) continue;
    if (!room_.remove(i * kSegment, segment.size)) continue;  // stays planned, which costs nothing
    MessageGuard keep;
    os::reserve_at(base_of(i), segment.size).ignore();  // else the pages stay until the addresses go
    planned_ -= segment.size;
    segment = Segment();
    if (i < first_absent_) first_absent_ = i;
  }
}

uint64_t BackupArena::bytes() {
  LockGuard guard(mutex_);
  return bytes_;
}

uint64_t BackupArena::trim() {
  uint64_t gone = 0;
  for (uint64_t i = 0;; ++i) {
    uint64_t size = 0;
    {
      LockGuard guard(mutex_);
      while (i < segments_.size() &&
             (segments_[i].state != State::kReady || abandoned_ || !room_.is_free(i * kSegment, segments_[i].size)))
        ++i;
      if (i >= segments_.size()) return gone;
      size = segments_[i].size;
      if (!room_.remove(i * kSegment, size)) return gone;
      segments_[i].state = State::kLeaving;
    }
    MessageGuard keep;
    bool left = !locks() || core_.backend->unpin(base_of(i), size).ok();
    if (!left) core_.log.write(LogLevel::kWarning, "Page-locked memory stays: %s", last_message());
    const bool dropped = left && os::reserve_at(base_of(i), size).ok();
    LockGuard guard(mutex_);
    if (!left) left = !room_.add(i * kSegment, size);  // without host memory to note it the room is lost
    if (left) {
      bytes_ -= size;
      if (dropped) gone += size;
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
  if (base_ != nullptr && !abandoned_) {
    for (uint64_t i = 0; i < segments_.size(); ++i) {
      // What the driver will not let go keeps its pages and addresses, and is offered again.
      if (segments_[i].state == State::kReady && locks())
        core_.deferred_release.unpin_pages(*core_.backend, base_of(i), segments_[i].size);
      else
        munmap(base_of(i), kSegment);
      if (segments_[i].state == State::kReady && locks() && segments_[i].size < kSegment)
        munmap(base_of(i) + segments_[i].size, kSegment - segments_[i].size);
    }
  }
  base_ = nullptr;
  segments_.clear();
  room_.clear();
  bytes_ = planned_ = first_absent_ = 0;
}

}  // namespace gmm
