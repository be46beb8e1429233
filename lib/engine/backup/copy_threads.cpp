// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/copy_threads.h"

#include <sched.h>

#include "base/process.h"
#include "base/status.h"
#include "base/thread.h"

namespace gmm {
namespace {

constexpr size_t kStackSize = size_t{256} << 10;
constexpr uint32_t kMostByDefault = 16;  // more copy no faster: the memory's bandwidth is the bound

uint32_t cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : static_cast<uint32_t>(count);
}

}  // namespace

void BackupThreads::set_count(uint32_t count) {
  stop();
  if (count == 0) {
    count = cores();
    if (count > kMostByDefault) count = kMostByDefault;
  }
  LockGuard guard(mutex_);
  wanted_ = count > kMost ? kMost : count;
}

// One more thread, with the lock held.
bool BackupThreads::start() {
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error == 0) {
    pthread_attr_setstacksize(&attributes, kStackSize);  // only refused when below the system's minimum
    error = start_thread(&threads_[running_], &attributes, ThreadSignals::kNone, thread_main, this);
    pthread_attr_destroy(&attributes);
  }
  if (error == 0) {
    ++running_;
    return true;
  }
  if (!complained_) {
    complained_ = true;
    char text[96];
    log_.write(LogLevel::kWarning, "A thread for backups could not be started: %s; they go on with %u.",
               system_error_text(error, text, sizeof text), running_);
  }
  return false;
}

void BackupThreads::submit(BackupTask *task) {
  task->next = nullptr;
  {
    LockGuard guard(mutex_);
    if (wanted_ == 0) {
      const uint32_t count = cores();
      wanted_ = count > kMostByDefault ? kMostByDefault : count;
    }
    if (idle_ <= pending_ && running_ < wanted_) start();
    if (running_ != 0) {
      task->done = false;
      if (last_ == nullptr)
        first_ = task;
      else
        last_->next = task;
      last_ = task;
      ++pending_;
      queued_.notify_one();
      return;
    }
  }
  task->run(task);
  task->done = true;
}

void BackupThreads::wait(BackupTask *task) {
  LockGuard guard(mutex_);
  while (!task->done) finished_.wait(mutex_);
}

bool BackupThreads::is_done(BackupTask *task) {
  LockGuard guard(mutex_);
  return task->done;
}

void *BackupThreads::thread_main(void *self) {
  name_thread("gmm backup");
  static_cast<BackupThreads *>(self)->work();
  return nullptr;
}

void BackupThreads::work() {
  mutex_.lock();
  for (;;) {
    while (first_ == nullptr && !stopping_) {
      ++idle_;
      queued_.wait(mutex_);
      --idle_;
    }
    if (first_ == nullptr) break;
    BackupTask *task = first_;
    first_ = task->next;
    if (first_ == nullptr) last_ = nullptr;
    --pending_;
    mutex_.unlock();
    task->run(task);
    mutex_.lock();
    task->done = true;
    finished_.notify_all();
  }
  mutex_.unlock();
}

void BackupThreads::stop() {
  {
    LockGuard guard(mutex_);
    stopping_ = true;
    queued_.notify_all();
  }
  for (uint32_t i = 0; i < running_; ++i) pthread_join(threads_[i], nullptr);
  LockGuard guard(mutex_);
  running_ = 0;
  stopping_ = false;
}

}  // namespace gmm
