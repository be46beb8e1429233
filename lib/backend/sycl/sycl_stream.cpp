// SPDX-License-Identifier: Apache-2.0
#include "backend/sycl/sycl_stream.h"

#include <sched.h>

#include "base/os_memory.h"
#include "base/process.h"
#include "base/thread.h"

namespace gmm::sycl {

void Mark::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (event_ != nullptr) api_.DPCTLEvent_Delete(event_);
  allocator_.destroy(this);
}

void Mark::reached(EventRef event) {
  LockGuard lock(mutex_);
  event_ = event;
  reached_ = true;
  changed_.notify_all();
}

bool Mark::is_reached() {
  LockGuard lock(mutex_);
  return reached_;
}

EventRef Mark::wait_reached() {
  LockGuard lock(mutex_);
  while (!reached_) changed_.wait(mutex_);
  return event_;
}

bool Mark::passed() {
  LockGuard lock(mutex_);
  return reached_ && (event_ == nullptr || api_.passed(event_));
}

Status Mark::wait() {
  EventRef event = wait_reached();
  return event == nullptr ? Status() : api_.wait(event);
}

SyclStream::SyclStream(const Interface &api, const HostAllocator &allocator, const Log &log, SyclStreamTable &table,
                       QueueRef queue, Device device, uint64_t id, bool is_created)
    : StreamEntry{device, id, reinterpret_cast<gmm_stream>(queue), 1, is_created},
      queue(queue),
      api_(api),
      allocator_(allocator),
      log_(log),
      table_(table),
      in_order_(api.DPCTLQueue_IsInOrder(queue)) {}

SyclStream::~SyclStream() { api_.DPCTLQueue_Delete(queue); }

Status SyclStream::touch(const void *base, uint64_t size) {
  return call_host([=] {
    const volatile char *bytes = static_cast<const volatile char *>(base);
    for (uint64_t offset = 0; offset < size; offset += os::page_size()) (void)bytes[offset];
  });
}

Status SyclStream::wait_for(Mark *mark) {
  mark->retain();
  const Status status = enqueue({Task::Kind::kWait,
                                 [=, this] {
                                   EventRef event = mark->wait_reached();
                                   if (event == nullptr || api_.passed(event)) return Status();
                                   return api_.check(api_.DPCTLQueue_SubmitBarrierForEvents(queue, &event, 1),
                                                     "DPCTLQueue_SubmitBarrierForEvents");
                                 },
                                 mark});
  if (!status.ok()) mark->release();
  return status;
}

Status SyclStream::record(Mark **out) {
  Mark *mark = allocator_.create<Mark>(api_, allocator_);
  if (mark == nullptr) return no_memory_for("Queueing work on a stream");
  mark->retain();
  const Status status = enqueue({Task::Kind::kMark,
                                 [=, this] {
                                   EventRef event = api_.DPCTLQueue_SubmitBarrier(queue);
                                   if (event == nullptr) return api_.failed("DPCTLQueue_SubmitBarrier");
                                   mark->reached(event);
                                   return Status();
                                 },
                                 mark});
  if (status.ok()) {
    *out = mark;
    return status;
  }
  mark->release();
  mark->release();
  return status;
}

Status SyclStream::synchronize() {
  Mark *mark = nullptr;
  uint64_t before = 0;
  {
    LockGuard lock(mutex_);
    if (working_ && is_calling_thread(thread_))
      return fail(GMM_ERROR_BUSY,
                  "Waiting for a stream in a call that runs on it: the wait would never end; wait on another thread.");
    before = submissions_;
  }
  GMM_TRY(record(&mark));
  const Status status = mark->wait();
  mark->release();
  LockGuard lock(mutex_);
  is_drained_ = status.ok() && list_.empty() && submissions_ == before;
  return status;
}

Status SyclStream::query(bool *idle) {
  bool is_drained;
  {
    LockGuard lock(mutex_);
    *idle = false;
    if (working_) return Status();
    is_drained = is_drained_;
  }
  // The program may have queued work itself, so a barrier tells whether the queue is idle. On an idle queue the barrier
  // passes soon, but not always at once.
  constexpr uint64_t kPatience = 20;  // milliseconds
  Mark *mark = nullptr;
  GMM_TRY(record(&mark));
  *idle = mark->passed();
  for (const uint64_t begin = monotonic_ms(); is_drained && !*idle && monotonic_ms() - begin < kPatience;) {
    sched_yield();
    *idle = mark->passed();
  }
  mark->release();
  return Status();
}

Status SyclStream::enqueue(Task task) {
  LockGuard lock(mutex_);
  if (task.kind != Task::Kind::kMark) {
    is_drained_ = false;
    ++submissions_;
  }
  if (!working_ && task.kind != Task::Kind::kCall && (task.kind != Task::Kind::kWait || task.mark->is_reached())) {
    GMM_TRY(submit(task));
    if (task.mark != nullptr) task.mark->release();
    return Status();
  }
  Task *node = allocator_.create<Task>(task);
  if (node == nullptr) return no_memory_for("Queueing work on a stream");
  if (!working_) {
    table_.worker_begins(this);
    const Status status = start_stream_thread(&thread_, thread_entry<SyclStream, &SyclStream::work>, this);
    working_ = status.ok();
    if (!status.ok()) {
      table_.worker_ends(this);
      allocator_.destroy(node);
      return status;
    }
  }
  list_.push_back(node);
  return Status();
}

void SyclStream::work() {
  detach_calling_thread();
  name_thread("gmm-stream");
  mutex_.lock();
  while (Task *task = list_.pop_front()) {
    mutex_.unlock();
    if (!submit(*task).ok()) {
      log_.write(LogLevel::kError, "The queue refused work that had waited behind a call: %s", last_message());
      if (task->kind == Task::Kind::kMark) task->mark->reached(nullptr);
    }
    if (task->mark != nullptr) task->mark->release();
    allocator_.destroy(task);
    mutex_.lock();
  }
  working_ = false;
  mutex_.unlock();
  table_.worker_ends(this);  // from here on the thread touches nothing of the backend
}

Status SyclStream::submit(Task &task) {
  // The program's queue may run its work in any order. A barrier on either side orders this work as in a stream.
  const bool has_barriers = !in_order_ && (task.kind == Task::Kind::kCommand || task.kind == Task::Kind::kWait);
  if (has_barriers) GMM_TRY(barrier());
  GMM_TRY(task.run(task.work));
  return has_barriers ? barrier() : Status();
}

// --- The table of streams --------------------------------------------------------------------------------------------

Status SyclStreamTable::make(Device device, uint64_t id, SyclStream **out) {
  QueueRef queue = platform_.api.DPCTLQueue_Create(platform_.context, platform_.devices[device.ordinal],
                                                   &Interface::device_failed, kInOrder);
  if (queue == nullptr) return platform_.api.failed("DPCTLQueue_Create");
  *out = allocator_.create<SyclStream>(platform_.api, allocator_, log_, *this, queue, device, id, true);
  if (*out != nullptr) return Status();
  platform_.api.DPCTLQueue_Delete(queue);
  return no_memory_for("Creating a stream");
}

Status SyclStreamTable::find_unknown(gmm_stream handle, SyclStream **out) {
  QueueRef queue = platform_.api.DPCTLQueue_Copy(reinterpret_cast<QueueRef>(handle));
  if (queue == nullptr)
    return fail(GMM_ERROR_INVALID_HANDLE, "Stream %p is no SYCL queue; pass a live DPCTLSyclQueueRef.",
                static_cast<void *>(handle));
  ContextRef context = platform_.api.DPCTLQueue_GetContext(queue);
  DeviceRef device = platform_.api.DPCTLQueue_GetDevice(queue);
  const bool is_ours =
      context != nullptr && device != nullptr && platform_.api.DPCTLContext_AreEq(context, platform_.context);
  const int32_t ordinal = is_ours ? platform_.ordinal_of(device) : -1;
  if (context != nullptr) platform_.api.DPCTLContext_Delete(context);
  if (device != nullptr) platform_.api.DPCTLDevice_Delete(device);
  SyclStream *stream = nullptr;
  if (ordinal >= 0 && streams_.reserve(streams_.size() + 1))
    stream =
        allocator_.create<SyclStream>(platform_.api, allocator_, log_, *this, queue, Device{ordinal}, new_id(), false);
  if (stream == nullptr) {
    platform_.api.DPCTLQueue_Delete(queue);
    if (ordinal >= 0) return no_memory_for("Creating a stream");
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Stream %p is a SYCL queue of another SYCL context or platform, which cannot use gmm's memory; make "
                "the queue for a device of gmm's platform in its default context.",
                static_cast<void *>(handle));
  }
  stream->handle = handle;
  streams_.push_back_reserved(stream);
  *out = stream;
  return Status();
}

void SyclStreamTable::close() {
  for_each(kHostLocation, [&](SyclStream &stream) {
    if (!stream.synchronize().ok()) log_.write(LogLevel::kWarning, "The wait for a stream failed: %s", last_message());
    return Status();
  }).ignore();
  {
    LockGuard lock(mutex_);
    while (workers_ != 0) worker_ended_.wait(mutex_);
  }
  destroy_all();
}

void SyclStreamTable::worker_begins(SyclStream *stream) {
  LockGuard lock(mutex_);
  ++stream->references;
  ++workers_;
}

void SyclStreamTable::worker_ends(SyclStream *stream) {
  LockGuard lock(mutex_);
  drop(stream);
  --workers_;
  worker_ended_.notify_all();
}

}  // namespace gmm::sycl
