// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_stream.h"

#include <sys/mman.h>

#include <cstring>

#include "base/os_memory.h"
#include "base/thread.h"

namespace gmm {

HostStream *HostStream::create(const HostAllocator &allocator, const Log &log, Device device, uint64_t id) {
  return allocator.create<HostStream>(allocator, log, device, id);
}

void HostStream::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

Status HostStream::call(void (*fn)(void *), void *user) {
  return enqueue({.kind = TaskKind::kCall, .fn = fn, .user = user});
}

Status HostStream::copy(void *destination, const void *source, uint64_t size) {
  return enqueue({.kind = TaskKind::kCopy, .destination = destination, .source = source, .size = size});
}

Status HostStream::fill(void *destination, uint8_t value, uint64_t size) {
  return enqueue({.kind = TaskKind::kFill, .value = value, .destination = destination, .size = size});
}

Status HostStream::populate(void *base, uint64_t size) {
  return enqueue({.kind = TaskKind::kPopulate, .destination = base, .size = size});
}

Status HostStream::wait_for(HostStream *other, uint64_t position) {
  if (other == this || other->passed(position)) return Status();
  other->retain();
  Status status = enqueue({.kind = TaskKind::kWait, .size = position, .other = other});
  if (!status.ok()) other->release();
  return status;
}

Status HostStream::enqueue_shared(TaskKind kind, HostSharedEvent *event, uint64_t number) {
  event->retain();
  Status status = enqueue({.kind = kind, .size = number, .shared = event});
  if (!status.ok()) event->release();
  return status;
}

Status HostStream::pass(HostSharedEvent *event, uint64_t number) {
  return enqueue_shared(TaskKind::kPass, event, number);
}

Status HostStream::wait_for(HostSharedEvent *event, uint64_t number) {
  return event->passed(number) ? Status() : enqueue_shared(TaskKind::kWaitShared, event, number);
}

Status HostStream::enqueue(const Task &task) {
  Task *node = allocator_.create<Task>(task);
  if (node == nullptr) return no_memory_for("Queueing work on a stream");
  LockGuard lock(mutex_);
  Status status =
      closed_ ? fail(GMM_ERROR_INVALID_HANDLE, "Queueing work on a stream: the stream was destroyed; pass a live one.")
              : start();
  if (!status.ok()) {
    allocator_.destroy(node);
    return status;
  }
  if (last_ == nullptr)
    first_ = node;
  else
    last_->next = node;
  last_ = node;
  ++submitted_;
  queued_.notify_one();
  return Status();
}

Status HostStream::start() {
  if (started_) return Status();
  GMM_TRY(start_stream_thread(&thread_, &HostStream::thread_main, this));
  started_ = true;
  return Status();
}

void *HostStream::thread_main(void *stream) {
  name_thread("gmm-stream");
  static_cast<HostStream *>(stream)->work();
  return nullptr;
}

void HostStream::work() {
  mutex_.lock();
  for (;;) {
    while (first_ == nullptr && !closed_) queued_.wait(mutex_);
    if (first_ == nullptr) break;
    Task *task = first_;
    first_ = task->next;
    if (first_ == nullptr) last_ = nullptr;
    mutex_.unlock();
    run(*task);
    allocator_.destroy(task);
    mutex_.lock();
    completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    progressed_.notify_all();
  }
  mutex_.unlock();
}

void HostStream::run(const Task &task) {
  switch (task.kind) {
    case TaskKind::kCall:
      return task.fn(task.user);
    case TaskKind::kCopy:
      std::memcpy(task.destination, task.source, task.size);
      return;
    case TaskKind::kFill:
      std::memset(task.destination, task.value, task.size);
      return;
    case TaskKind::kPopulate: {
      // A prefetch is a hint. It must not make the machine swap or run out of memory, and its failure is only logged.
      Status status = os::check_available(task.size, GMM_ERROR_OUT_OF_MEMORY);
      if (status.ok()) status = os::advise_pages(task.destination, task.size, os::kPopulateWrite);
      if (!status.ok()) status = os::advise_pages(task.destination, task.size, MADV_WILLNEED);
      if (!status.ok()) log_.write(LogLevel::kDebug, "A prefetch had no effect. %s", last_message());
      return;
    }
    case TaskKind::kWait:
      task.other->synchronize(task.size);
      task.other->release();
      return;
    case TaskKind::kPass:
      task.shared->pass(task.size);
      task.shared->release();
      return;
    case TaskKind::kWaitShared:
      if (!task.shared->wait(task.size))
        log_.write(LogLevel::kWarning,
                   "A stream waited for an event whose process has ended; the stream's further work runs.");
      task.shared->release();
      return;
  }
}

uint64_t HostStream::position() {
  LockGuard lock(mutex_);
  return submitted_;
}

void HostStream::synchronize(uint64_t position) {
  if (passed(position)) return;
  LockGuard lock(mutex_);
  while (!passed(position)) progressed_.wait(mutex_);
}

bool HostStream::is_own_thread() {
  LockGuard lock(mutex_);
  return started_ && is_calling_thread(thread_);
}

void HostStream::close() {
  bool started = false;
  {
    LockGuard lock(mutex_);
    closed_ = true;
    started = started_;
    started_ = false;  // join_thread() makes the thread's id invalid
    queued_.notify_one();
  }
  if (started) join_thread(thread_);
}

}  // namespace gmm
