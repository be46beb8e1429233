// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/copy_threads.h"

#include "base/process.h"
#include "base/status.h"

namespace gmm {
namespace {

constexpr size_t kCopyThreadStack = size_t{256} << 10;
constexpr uint32_t kDefaultMaxThreads = 16;  // 16 threads reach the bandwidth of the host memory; more copy no faster

uint32_t default_count() {
  const uint32_t count = usable_processors();
  return count > kDefaultMaxThreads ? kDefaultMaxThreads : count;
}

}  // namespace

void CopyThreads::set_count(uint32_t count) {
  stop();
  LockGuard guard(mutex_);
  wanted_ = count > kMaxThreads ? kMaxThreads : count;
}

bool CopyThreads::start_thread_locked() {
  const int error = start_thread(&threads_[running_], ThreadSignals::kNone,
                                 thread_entry<CopyThreads, &CopyThreads::work>, this, kCopyThreadStack);
  if (error == 0) {
    ++running_;
    return true;
  }
  if (!has_warned_) {
    has_warned_ = true;
    log_.write(LogLevel::kWarning, "A thread for backups could not be started: %s; backups continue with %u threads.",
               ErrorText(error).text, running_);
  }
  return false;
}

void CopyThreads::submit(CopyTask *task) {
  task->next = nullptr;
  {
    LockGuard guard(mutex_);
    if (wanted_ == 0) wanted_ = default_count();
    if (idle_ <= pending_ && running_ < wanted_) start_thread_locked();
    if (running_ != 0) {
      task->is_done = false;
      if (last_ == nullptr)
        first_ = task;
      else
        last_->next = task;
      last_ = task;
      ++pending_;
      submitted_.notify_one();
      return;
    }
  }
  task->run(task);
  task->is_done = true;
}

void CopyThreads::wait(CopyTask *task) {
  LockGuard guard(mutex_);
  while (!task->is_done) finished_.wait(mutex_);
}

bool CopyThreads::is_done(CopyTask *task) {
  LockGuard guard(mutex_);
  return task->is_done;
}

void CopyThreads::work() {
  name_thread("gmm backup");
  mutex_.lock();
  for (;;) {
    while (first_ == nullptr && !is_stopping_) {
      ++idle_;
      submitted_.wait(mutex_);
      --idle_;
    }
    if (first_ == nullptr) break;
    CopyTask *task = first_;
    first_ = task->next;
    if (first_ == nullptr) last_ = nullptr;
    --pending_;
    mutex_.unlock();
    task->run(task);
    mutex_.lock();
    task->is_done = true;
    finished_.notify_all();
  }
  mutex_.unlock();
}

void CopyThreads::stop() {
  {
    LockGuard guard(mutex_);
    is_stopping_ = true;
    submitted_.notify_all();
  }
  for (uint32_t i = 0; i < running_; ++i) join_thread(threads_[i]);
  LockGuard guard(mutex_);
  running_ = 0;
  is_stopping_ = false;
}

}  // namespace gmm
