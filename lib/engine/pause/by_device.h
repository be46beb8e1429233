// SPDX-License-Identifier: Apache-2.0
// Steps over the heaps of a transition that several devices take side by side, as each has a link of its own.
//
// The heaps of one device take a step one after the other. The calling thread, which holds the locks of all heaps,
// serves the first device that copies much, and all that copy little. Each further one has a thread for the time of the
// step. Heaps of different devices share only what guards itself: the backup, the quotas, the ready signal.
//
// - The calling thread alone tells the program about progress.
// - The calling thread delivers the log messages of another thread, once the heaps are unlocked.
// - The first failure ends the other devices at their next report, and is the step's.
// - Without host memory or a thread the calling thread serves all devices.
#ifndef GMM_ENGINE_PAUSE_BY_DEVICE_H
#define GMM_ENGINE_PAUSE_BY_DEVICE_H

#include <atomic>
#include <cstdio>

#include "base/lock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/vector.h"
#include "engine/pause/heap_transition.h"

namespace gmm {

// It is made when the heaps know what they copy.
class ByDevice : NoCopy {
 public:
  using Step = Status (HeapTransition::*)();

  ByDevice(Core &core, Vector<HeapTransition *> &heaps) : heaps_(heaps), busy_(core.allocator) {
    for (HeapTransition *heap : heaps) add(heap->device());
  }

  // The step of each heap, until one fails.
  Status run(TransitionProgress &progress, Step step) {
    progress_ = &progress;
    step_ = step;
    for (uint64_t i = 1; i < busy_.size(); ++i) start(busy_[i]);
    note(serve(nullptr));
    while (wait_for_threads())
      if (!progress.is_stopped()) note(progress.tell());
    bool had_threads = false;
    for (BusyDevice &busy : busy_) {
      if (!busy.has_thread) continue;
      had_threads = true;
      join_thread(busy.thread);
      busy.has_thread = false;
      adopt_messages(busy.messages);
    }
    // The last bytes may be another thread's, which have not been reported.
    if (had_threads && !progress.is_stopped()) note(progress.tell());
    return code_ == GMM_OK ? Status() : fail_native(code_, native_, "%s", message_);
  }

 private:
  static constexpr uint64_t kMuch = uint64_t{8} << 20;  // bytes of copies that are worth a thread
  static constexpr uint64_t kTellEvery = 20;            // ms
  // A device that copies much.
  struct BusyDevice {
    ByDevice *owner = nullptr;
    Device device;
    Thread thread;
    bool has_thread = false;
    LogMessages messages = {};
  };

  void add(Device device) {
    uint64_t bytes = 0;
    for (HeapTransition *heap : heaps_)
      if (heap->device() == device) bytes += heap->bytes();
    if (bytes < kMuch || find(device) != nullptr) return;
    BusyDevice busy;
    busy.owner = this;
    busy.device = device;
    busy_.push_back(busy) ? void() : busy_.clear();
  }
  const BusyDevice *find(Device device) const {
    for (const BusyDevice &busy : busy_)
      if (busy.device == device) return &busy;
    return nullptr;
  }
  // Serves the heaps of one device, or those of the calling thread.
  Status serve(const BusyDevice *own) {
    for (HeapTransition *heap : heaps_) {
      const BusyDevice *busy = find(heap->device());
      if (own == nullptr ? busy != nullptr && busy->has_thread : busy != own) continue;
      heap->begin_step(*progress_, own == nullptr);
      GMM_TRY((heap->*step_)());
      heap->end_step();
    }
    return Status();
  }
  void start(BusyDevice &busy) {
    busy.has_thread = true;
    {
      LockGuard guard(mutex_);
      ++running_;
    }
    if (start_thread(&busy.thread, ThreadSignals::kNone, thread_main, &busy) == 0) return;
    busy.has_thread = false;
    LockGuard guard(mutex_);
    --running_;
  }
  static void *thread_main(void *of) {
    BusyDevice &busy = *static_cast<BusyDevice *>(of);
    ByDevice &self = *busy.owner;
    name_thread("gmm-device");
    {
      const MessagesWait wait;
      self.note(self.serve(&busy));
      busy.messages = take_messages();
    }
    LockGuard guard(self.mutex_);
    --self.running_;
    self.changed_.notify_all();
    return nullptr;
  }
  // Keeps the first failure.
  void note(const Status &status) {
    if (status.ok() || !progress_->stop()) return;
    code_ = status.code();
    native_ = last_native();
    std::snprintf(message_, sizeof message_, "%s", last_message());
  }
  // Waits a little. False: no thread runs any more.
  bool wait_for_threads() {
    LockGuard guard(mutex_);
    if (running_ != 0) changed_.wait_for(mutex_, kTellEvery);
    return running_ != 0;
  }

  Vector<HeapTransition *> &heaps_;
  Vector<BusyDevice> busy_;
  TransitionProgress *progress_ = nullptr;
  Step step_ = nullptr;
  gmm_result code_ = GMM_OK;
  int32_t native_ = 0;
  char message_[1024] = {};
  Mutex mutex_{LockRank::kByDevice};
  Condition changed_;
  uint32_t running_ = 0;  // with mutex_
};

}  // namespace gmm
#endif
