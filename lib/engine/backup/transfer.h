// SPDX-License-Identifier: Apache-2.0
// What a save and a restore have in common: a stream of the device and a window of copies under way.
//
// A flight is a batch of chunks of one tier and part. It is copied by the device, and a task of the copy threads does the rest: between a
// slot of the staging ring and its place (pageable memory, a file), and checksums. Flights end in their order.
#ifndef GMM_ENGINE_BACKUP_TRANSFER_H
#define GMM_ENGINE_BACKUP_TRANSFER_H

#include "engine/backup/plan.h"
#include "engine/backup/store.h"

namespace gmm {

class BackupTransfer {
 public:
  BackupTransfer(BackupTiers &tiers, Device device, const BackupSteps &steps, bool out)
      : tiers_(tiers), device_(device), steps_(steps), out_(out), plan_(tiers.core.allocator) {}

 protected:
  static constexpr uint64_t kWindow = 24;  // flights under way, and slots of the ring
  // Of them with the device: where there is staging, most are with the threads, so that a disk has all of its requests and the next
  // ones wait for it.
  uint64_t device_ahead() const { return staged_ ? 4 : 12; }
  static constexpr uint64_t kMostDirect = uint64_t{32} << 20;   // bytes of a flight without a task
  static constexpr uint64_t kMostSkipped = uint64_t{64} << 20;  // progress comes at least so often

  enum class Fault { kNone, kCorrupt, kWrite, kRead };
  struct Flight : BackupTask {
    BackupTransfer *transfer = nullptr;
    uint64_t first = 0, end = 0;  // moves
    uint64_t part = 0;
    uint64_t bytes = 0;
    Tier tier = Tier::kZero;
    bool idle = false;    // nothing to copy: contents that are zero, or kept already
    bool direct = false;  // between the device and its place
    bool has_task = false, submitted = false;
    char *slot = nullptr;
    NativeEvent event = nullptr;
    Fault fault = Fault::kNone;
    int error = 0;
    uint64_t fault_move = 0;
  };

  Status open();
  Status open_ring();
  // Waits for the threads and the device, and ends the stream. False: the device may still copy.
  bool close(bool failed);

  // The next flight of moves from next_ on, in the window's place for `index`. It does not cross parts.
  Flight &make_flight(uint64_t index);
  Flight &flight(uint64_t index) { return flights_[index % kWindow]; }
  // Queues what the device does for it, and an event behind it.
  Status issue(Flight &flight);
  void submit(Flight &flight);
  Status finish_task(Flight &flight);
  // The flight is over: progress, and parts that are complete.
  Status finish(Flight &flight);
  Status begin_parts(uint64_t upto);
  Status end_parts();
  Status tell(uint64_t bytes);

  BackupTiers &tiers_;
  const Device device_;
  const BackupSteps &steps_;
  const bool out_;
  BackupPlan plan_;
  bool staged_ = false;
  uint64_t next_ = 0;  // the first move that is in no flight yet

 private:
  static void run_save(BackupTask *task);
  static void run_restore(BackupTask *task);
  uint64_t part_of(uint64_t move) const;
  bool fits(const Flight &flight, uint64_t move, uint64_t taken) const;
  char *host_address(const Flight &flight, const BackupMove &move, uint64_t slot_offset) const;
  Status copy_run(const Flight &flight, char *host, uintptr_t device, uint64_t size);
  Status fault_of(const Flight &flight);

  Flight flights_[kWindow];
  gmm_stream stream_ = nullptr;
  uint64_t done_moves_ = 0, done_bytes_ = 0;
  uint64_t begun_parts_ = 0, ended_parts_ = 0;

 protected:
  gmm_stream stream() const { return stream_; }
};

}  // namespace gmm
#endif
