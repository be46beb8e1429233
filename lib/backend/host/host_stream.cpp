// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_stream.h"

#include <cstring>
#include <new>
#include <type_traits>

#include "base/os_memory.h"
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

template <typename Work>
Status HostStream::enqueue(Work work) {
  static_assert(std::is_trivially_copyable_v<Work> && sizeof(Work) <= sizeof(Task::work));
  Task task;
  task.run = [](void *own) { (*static_cast<Work *>(own))(); };
  ::new (task.work) Work(work);
  return add(task);
}

template <typename Object, typename Work>
Status HostStream::enqueue_with(Object *object, Work work) {
  object->retain();
  const Status status = enqueue([=] {
    work(*object);
    object->release();
  });
  if (!status.ok()) object->release();
  return status;
}

Status HostStream::call(void (*fn)(void *), void *user) {
  return enqueue([=] { fn(user); });
}

Status HostStream::copy(void *destination, const void *source, uint64_t size) {
  return enqueue([=] { std::memcpy(destination, source, size); });
}

Status HostStream::fill(void *destination, uint8_t value, uint64_t size) {
  return enqueue([=] { std::memset(destination, value, size); });
}

// A prefetch is a hint. It must not make the machine swap or run out of memory, and its failure is only logged.
Status HostStream::populate(void *base, uint64_t size) {
  return enqueue([this, base, size] {
    Status status = os::check_available(size, GMM_ERROR_OUT_OF_MEMORY);
    if (status.ok()) status = os::populate_pages(base, size);
    if (!status.ok()) log_.write(LogLevel::kDebug, "A prefetch had no effect. %s", last_message());
  });
}

Status HostStream::wait_for(HostStream *other, uint64_t position) {
  if (other == this || other->passed(position)) return Status();
  return enqueue_with(other, [=](HostStream &stream) { stream.wait_until(position); });
}

Status HostStream::pass(HostSharedEvent *event, uint64_t number) {
  return enqueue_with(event, [=](HostSharedEvent &passed) { passed.pass(number); });
}

Status HostStream::wait_for(HostSharedEvent *event, uint64_t number) {
  if (event->passed(number)) return Status();
  return enqueue_with(event, [this, number](HostSharedEvent &awaited) {
    if (!awaited.wait(number))
      log_.write(LogLevel::kWarning,
                 "A stream waited for an event whose process has ended; the stream's further work runs.");
  });
}

Status HostStream::add(const Task &task) {
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
  for_each([](HostStream &stream) { stream.close(); });
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
