// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_stream.h"

#include "base/thread.h"

namespace gmm {
namespace {

constexpr uint32_t kHandleShift = 4;  // keeps handles distinct from the three special values

}  // namespace

HostStream::HostStream(const HostAllocator &allocator, const Log &log, HostStreamTable &table, Device device,
                       uint64_t id)
    : StreamEntry{device, id, reinterpret_cast<gmm_stream>(id << kHandleShift)},
      allocator_(allocator),
      log_(log),
      table_(table) {}

void HostStream::retain() { table_.retain(this); }

void HostStream::release() { table_.release(this); }

template <typename Object, typename Work>
Status HostStream::run_with(Object *object, Work work) {
  object->retain();
  const Status status = run([=] {
    work(*object);
    object->release();
  });
  if (!status.ok()) object->release();
  return status;
}

Status HostStream::wait_for(HostStream *other, uint64_t position) {
  if (other == this || other->passed(position)) return Status();
  return run_with(other, [=](HostStream &stream) { stream.wait_until(position); });
}

Status HostStream::pass(HostSharedEvent *event, uint64_t number) {
  return run_with(event, [=](HostSharedEvent &passed) { passed.pass(number); });
}

Status HostStream::wait_for(HostSharedEvent *event, uint64_t number) {
  if (event->passed(number)) return Status();
  return run_with(event, [this, number](HostSharedEvent &awaited) {
    if (!awaited.wait(number))
      log_.write(LogLevel::kWarning,
                 "A stream waited for an event whose process has ended; the stream's further work runs.");
  });
}

Status HostStream::add(const Task &task) {
  Task *node = allocator_.create<Task>(task);
  if (node == nullptr) return no_memory_for("Queueing work on a stream");
  LockGuard lock(mutex_);
  Status status;
  if (closed_)
    status = fail(GMM_ERROR_INVALID_HANDLE, "Queueing work on a stream: the stream was destroyed; pass a live one.");
  else if (!started_)
    status = start_stream_thread(&thread_, thread_entry<HostStream, &HostStream::work>, this);
  if (!status.ok()) {
    allocator_.destroy(node);
    return status;
  }
  started_ = true;
  queue_.push_back(node);
  ++submitted_;
  queued_.notify_one();
  return Status();
}

void HostStream::work() {
  name_thread("gmm-stream");
  mutex_.lock();
  for (;;) {
    while (queue_.empty() && !closed_) queued_.wait(mutex_);
    Task *task = queue_.pop_front();
    if (task == nullptr) break;
    mutex_.unlock();
    task->run(task->work);
    allocator_.destroy(task);
    mutex_.lock();
    completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    progressed_.notify_all();
  }
  mutex_.unlock();
}

uint64_t HostStream::position() {
  LockGuard lock(mutex_);
  return submitted_;
}

void HostStream::wait_until(uint64_t position) {
  if (passed(position)) return;
  LockGuard lock(mutex_);
  while (!passed(position)) progressed_.wait(mutex_);
}

Status HostStream::check_other_thread() {
  LockGuard lock(mutex_);
  if (!started_ || !is_calling_thread(thread_)) return Status();
  return fail(GMM_ERROR_BUSY,
              "Waiting for a stream in a call that runs on it: the wait would never end; wait on another thread.");
}

Status HostStream::synchronize() {
  GMM_TRY(check_other_thread());
  wait_until(position());
  return Status();
}

Status HostStream::query(bool *idle) {
  *idle = passed(position());
  return Status();
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

// --- The table, and events -------------------------------------------------------------------------------------------

Status HostStreamTable::make(Device device, uint64_t id, HostStream **out) {
  *out = allocator_.create<HostStream>(allocator_, log_, *this, device, id);
  return *out == nullptr ? no_memory_for("Creating a stream") : Status();
}

void HostStreamTable::close() {
  // The order does not matter: a wait names work that is queued already, and each thread finishes its queue before it
  // ends.
  for_each(kHostLocation, [](HostStream &stream) {
    stream.close();
    return Status();
  }).ignore();
  destroy_all();
}

Status HostEvent::record(HostStream *stream) {
  HostStream *before = nullptr;
  {
    LockGuard lock(mutex_);
    if (shared_ != nullptr) {
      uint64_t number = 0;
      GMM_TRY(shared_->begin(&number));
      GMM_TRY(stream->pass(shared_, number));
      shared_->publish(number);
    }
    stream->retain();
    before = stream_;
    position_ = stream->position();
    stream_ = stream;
  }
  if (before != nullptr) before->release();
  return Status();
}

HostStream *HostEvent::get(uint64_t *position) {
  LockGuard lock(mutex_);
  if (stream_ != nullptr) stream_->retain();
  *position = position_;
  return stream_;
}

HostEvent::~HostEvent() {
  if (stream_ != nullptr) stream_->release();
  if (shared_ != nullptr) shared_->release();
}

}  // namespace gmm
