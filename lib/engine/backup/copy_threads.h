// SPDX-License-Identifier: Apache-2.0
// The threads of a backup. They copy and touch host memory, compute checksums, and read and write the backup file.
#ifndef GMM_ENGINE_BACKUP_COPY_THREADS_H
#define GMM_ENGINE_BACKUP_COPY_THREADS_H

#include <cstdint>

#include "base/lock.h"
#include "base/log.h"
#include "base/thread.h"

namespace gmm {

// A piece of work. The submitter owns it and keeps it until it is done.
struct CopyTask {
  void (*run)(CopyTask *self) = nullptr;  // must not call fail(), and must not take a lock that the submitter holds
  CopyTask *next = nullptr;
  bool is_done = true;
};

// Threads start when work needs them, and end in stop(). When no thread can be started, the submitter does the work.
// A child of fork() has none of these threads; the context's gate keeps it out of here.
class CopyThreads : NoCopy {
 public:
  static constexpr uint32_t kMaxThreads = 64;

  // `count`: as for set_count().
  CopyThreads(const Log &log, uint32_t count) : log_(log), wanted_(count) {}
  ~CopyThreads() { stop(); }

  // At most `count` threads. 0: one for each core that the process may use, at most 16. The caller has waited for all
  // its tasks.
  void set_count(uint32_t count);
  // Tasks start in the order of the calls, and end in any order.
  void submit(CopyTask *task);
  void wait(CopyTask *task);
  bool is_done(CopyTask *task);
  // Finishes what was submitted, then ends the threads.
  void stop();

 private:
  void work();
  bool start_thread_locked();

  const Log log_;
  Mutex mutex_{LockRank::kCopyThreads};  // guards what follows; last in the lock order
  Condition submitted_, finished_;
  CopyTask *first_ = nullptr, *last_ = nullptr;
  Thread threads_[kMaxThreads];
  uint32_t wanted_;  // 0: the default, which the first task asks for
  uint32_t running_ = 0, idle_ = 0;
  uint64_t pending_ = 0;  // tasks that no thread has begun
  bool is_stopping_ = false, has_warned_ = false;
};

}  // namespace gmm
#endif
