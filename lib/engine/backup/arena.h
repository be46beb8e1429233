// SPDX-License-Identifier: Apache-2.0
// The page-locked arena: the tier that the device copies to and from at the full speed of the bus.
//
// The arena reserves addresses for the machine's memory once (8 TiB at most), and backs them segment by segment: huge
// pages near the device, touched by several copy threads, then page-locked by the backend. To page-lock touched pages
// costs a tenth of what cuMemHostAlloc() costs. A segment stays until trim(), so only the first pause pays.
//
// A save allocates from planned segments before they have memory. make_ready() backs them, while copy threads touch the
// next kAhead segments and the device copies to earlier ones. The host backend copies with the CPU: there nothing is
// page-locked.
#ifndef GMM_ENGINE_BACKUP_ARENA_H
#define GMM_ENGINE_BACKUP_ARENA_H

#include "base/lock.h"
#include "base/vector.h"
#include "engine/backup/copy_threads.h"
#include "engine/backup/range_allocator.h"
#include "engine/space/core.h"

namespace gmm {

// Any thread may call the functions, but for clear(). Segments become ready one after the other, for all transfers.
class BackupArena : NoCopy {
 public:
  // 32 MiB: a small backup locks little memory, and a large one calls the driver seldom. A copy must not cross two
  // registrations, so this is also the largest copy.
  static constexpr uint64_t kSegment = uint64_t{32} << 20;

  BackupArena(Core &core, CopyThreads &threads)
      : core_(core), threads_(threads), segments_(core.allocator), ranges_(core.allocator) {}
  ~BackupArena() { clear(); }

  // Allocates a range, in planned segments too. Plans more segments while all of them have at most `limit` bytes.
  [[nodiscard]] bool allocate(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *offset);
  void free(uint64_t offset, uint64_t size);
  // Makes segments ready until `bytes` of ready ones are free, and all planned ones. *fits: false when the limit is
  // reached, or the system gives no addresses.
  Status make_free_ready(Device device, uint64_t bytes, uint64_t limit, bool *fits);

  // Backs the planned segments of the range. OUT_OF_HOST_MEMORY, DRIVER or SYSTEM when the memory cannot be had.
  Status make_ready(Device device, uint64_t offset, uint64_t size);
  bool is_ready(uint64_t offset, uint64_t size);
  // Planned segments without an allocated range become absent.
  void cancel_planned();

  char *address(uint64_t offset) const { return base_ + offset; }
  static uint64_t left_in_segment(uint64_t offset) { return kSegment - offset % kSegment; }

  // Bytes of ready segments.
  uint64_t bytes();
  // Returns ready segments without an allocated range to the system, and the number of their bytes.
  uint64_t trim();
  // Returns all segments and the addresses to the system.
  void clear();
  // The device may still copy to or from the arena: trim() and clear() leave its memory and addresses alone for good.
  void abandon() { is_abandoned_ = true; }

 private:
  // absent -> planned -> ready -> leaving -> absent. kLeaving: trim() is unlocking the segment.
  enum class State : uint8_t { kAbsent, kPlanned, kReady, kLeaving };
  struct Segment {
    State state = State::kAbsent;
    uint64_t size = 0;
  };
  struct TouchTask : CopyTask {
    char *base = nullptr;
    uint64_t size = 0;
    int error = 0;
  };
  // Segments that copy threads touch at the same time, and the tasks of each.
  static constexpr uint64_t kAhead = 8, kTouchTasks = 4;
  static constexpr uint64_t kNoSegment = UINT64_MAX;
  struct Touch {
    uint64_t segment = kNoSegment;
    TouchTask tasks[kTouchTasks];
  };

  bool plan_segment_locked(uint64_t limit);
  bool plan_free(uint64_t bytes, uint64_t limit, uint64_t *segments);
  void cancel_planned_growing();
  uint64_t planned_bytes_of(uint64_t segment);  // 0: it is not planned
  void begin_touch(Device device, uint64_t segment);
  int end_touch(Touch &touch);
  Status make_segment_ready(Device device, uint64_t segment);
  static void run_touch(CopyTask *task);
  char *base_of(uint64_t segment) const { return base_ + segment * kSegment; }
  bool is_page_locked() const { return core_.backend->id() != GMM_BACKEND_HOST; }

  Core &core_;
  CopyThreads &threads_;
  char *base_ = nullptr;
  std::atomic<bool> is_abandoned_{false};

  // Held while segments become ready, which waits for copy threads and the driver.
  Mutex growth_mutex_{LockRank::kBackupGrowth};
  Touch touches_[kAhead];  // guarded by it; a segment has the place of its number modulo kAhead

  Mutex mutex_{LockRank::kBackupArena};  // guards what follows; nothing is waited for under it
  uint64_t reserved_bytes_ = 0;          // of addresses
  Vector<Segment> segments_;             // that were planned once
  RangeAllocator ranges_;                // of planned and ready segments
  uint64_t bytes_ = 0;                   // of ready segments
  uint64_t planned_bytes_ = 0;           // of planned segments
  uint64_t first_absent_ = 0;            // no segment before this one is absent
};

}  // namespace gmm
#endif
