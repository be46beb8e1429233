// SPDX-License-Identifier: Apache-2.0
// The page-locked arena: where contents lie that are copied at the full speed of the bus.
//
// Addresses for all of the machine's memory are reserved once. They are filled segment by segment: huge pages near the device,
// touched by several threads, then locked. Locking touched pages costs a tenth of what cuMemHostAlloc() costs, and is paid once.
// Room can be planned in segments that are not there yet; make_ready() brings them while others are touched ahead and earlier
// ones are copied into. On the host backend nothing is locked.
#ifndef GMM_ENGINE_BACKUP_ARENA_H
#define GMM_ENGINE_BACKUP_ARENA_H

#include "base/lock.h"
#include "base/vector.h"
#include "engine/backup/copy_threads.h"
#include "engine/backup/range_allocator.h"
#include "engine/space/core.h"

namespace gmm {

// take(), give(), trim() and the questions: any thread. The rest: one thread at a time, which saves or prepares.
class BackupArena {
 public:
  // Small enough that little is locked for little, large enough that the driver is called seldom. A copy
  // must not cross from one registration into another, so this is also the largest copy.
  static constexpr uint64_t kSegment = uint64_t{32} << 20;

  BackupArena(Core &core, BackupThreads &threads)
      : core_(core), threads_(threads), segments_(core.allocator), room_(core.allocator) {}
  ~BackupArena() { clear(); }
  BackupArena(const BackupArena &) = delete;
  BackupArena &operator=(const BackupArena &) = delete;

  // Room, also in segments that must be made ready, as long as all segments have no more than `limit` bytes.
  [[nodiscard]] bool take(uint64_t size, uint64_t hint, uint64_t limit, uint64_t *where);
  void give(uint64_t where, uint64_t size);
  // More planned segments until this much is free. False: the limit, or no addresses.
  [[nodiscard]] bool plan_free(uint64_t bytes, uint64_t limit);

  // Brings the memory of planned room. OUT_OF_HOST_MEMORY, DRIVER or SYSTEM when it cannot be had.
  Status make_ready(Device device, uint64_t where, uint64_t size);
  Status make_all_ready(Device device);
  bool is_ready(uint64_t where, uint64_t size);
  // Planned segments that hold nothing are planned no more.
  void cancel_planned();

  char *address(uint64_t where) const { return base_ + where; }
  static uint64_t left_in_segment(uint64_t where) { return kSegment - where % kSegment; }

  uint64_t bytes();  // locked
  // Segments that hold nothing go back to the system; bytes of them.
  uint64_t trim();
  // All of them go, and the addresses.
  void clear();
  // Copies may still touch it: clear() leaves it where it is.
  void abandon() { abandoned_ = true; }

 private:
  enum class State : uint8_t { kAbsent, kPlanned, kTouched, kReady, kLeaving };
  struct Segment {
    State state = State::kAbsent;
    uint64_t size = 0;
  };
  struct TouchTask : BackupTask {
    char *base = nullptr;
    uint64_t size = 0;
    int error = 0;
  };
  static constexpr uint64_t kAhead = 8, kTouchTasks = 4;
  struct Touch {
    uint64_t segment = UINT64_MAX;
    TouchTask tasks[kTouchTasks];
  };

  bool reserve_addresses();
  bool plan_segment(uint64_t limit);
  void touch_ahead(Device device, uint64_t from);
  Status finish_touch(uint64_t segment);
  Status make_segment_ready(Device device, uint64_t segment);
  static void touch(BackupTask *task);
  char *base_of(uint64_t segment) const { return base_ + segment * kSegment; }
  bool locks() const { return core_.backend->id() != GMM_BACKEND_HOST; }

  Core &core_;
  BackupThreads &threads_;
  char *base_ = nullptr;
  uint64_t reserved_ = 0;
  std::atomic<bool> abandoned_{false};
  Touch touches_[kAhead];

  Mutex mutex_;  // what follows; nothing is waited for under it
  Vector<Segment> segments_;
  BackupRoom room_;     // of ready and planned segments
  uint64_t bytes_ = 0;  // of ready segments
  uint64_t planned_ = 0;
  uint64_t first_absent_ = 0;  // none of the segments before it is absent
};

}  // namespace gmm
#endif
