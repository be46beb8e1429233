// SPDX-License-Identifier: Apache-2.0
// The threads that copy, touch and check host memory, and read and write files, for backups.
#ifndef GMM_ENGINE_BACKUP_COPY_THREADS_H
#define GMM_ENGINE_BACKUP_COPY_THREADS_H

#include <pthread.h>

#include <cstdint>

#include "base/lock.h"
#include "base/log.h"

namespace gmm {

// A piece of work. It belongs to who submits it, and stays until it is done.
struct BackupTask {
  void (*run)(BackupTask *self) = nullptr;  // may neither fail() nor take locks that its owner holds
  BackupTask *next = nullptr;
  bool done = true;
};

// They start when first needed, and end with stop(). Where none can be started, the caller does the work.
// A child of fork() has no such threads and must not come here; the gate keeps it out.
class BackupThreads {
 public:
  static constexpr uint32_t kMost = 64;

  // `count` as for set_count().
  BackupThreads(const Log &log, uint32_t count) : log_(log), wanted_(count) {}
  ~BackupThreads() { stop(); }
  BackupThreads(const BackupThreads &) = delete;
  BackupThreads &operator=(const BackupThreads &) = delete;

  // 0: one for each core that the process may use, 16 at most. No work is under way.
  void set_count(uint32_t count);
  // In the order of the calls; they end in any order.
  void submit(BackupTask *task);
  void wait(BackupTask *task);
  bool is_done(BackupTask *task);
  // Waits for the work.
  void stop();

 private:
  static void *thread_main(void *self);
  void work();
  bool start();

  const Log log_;
  Mutex mutex_;
  Condition queued_, finished_;
  BackupTask *first_ = nullptr, *last_ = nullptr;
  pthread_t threads_[kMost] = {};
  uint32_t wanted_;  // 0: not asked yet
  uint32_t running_ = 0, idle_ = 0;
  uint64_t pending_ = 0;  // submitted and not begun
  bool stopping_ = false, complained_ = false;
};

}  // namespace gmm
#endif
