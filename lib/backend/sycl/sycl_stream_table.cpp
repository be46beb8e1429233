// SPDX-License-Identifier: Apache-2.0
#include "backend/sycl/sycl_stream_table.h"

namespace gmm::sycl {

void SyclStreamTable::set_devices(ContextRef context, const DeviceRef *devices, uint32_t count) {
  context_ = context;
  devices_ = devices;
  device_count_ = count;
}

Status SyclStreamTable::add(QueueRef queue, Device device, bool owned, SyclStream **out) {
  if (!streams_.reserve(streams_.size() + 1)) return no_memory_for("Creating a stream");
  SyclStream *stream = allocator_.create<SyclStream>(api_, allocator_, log_, *this, queue, device, last_id_ + 1, owned);
  if (stream == nullptr) return no_memory_for("Creating a stream");
  ++last_id_;
  streams_.push_back_reserved(stream);
  *out = stream;
  return Status();
}

Status SyclStreamTable::add_new(Device device, SyclStream **out) {
  QueueRef queue = api_.DPCTLQueue_Create(context_, devices_[device.ordinal], &Interface::device_failed, kInOrder);
  if (queue == nullptr) return api_.failed("DPCTLQueue_Create");
  const Status status = add(queue, device, true, out);
  if (!status.ok()) api_.DPCTLQueue_Delete(queue);
  return status;
}

Status SyclStreamTable::create(Device device, gmm_stream *out) {
  LockGuard lock(mutex_);
  SyclStream *stream = nullptr;
  GMM_TRY(add_new(device, &stream));
  stream->handle = reinterpret_cast<gmm_stream>(stream->queue);
  *out = stream->handle;
  return Status();
}

// Adopts a queue of the program. The stream's reference keeps the queue alive, whatever the program does.
Status SyclStreamTable::adopt(gmm_stream handle, SyclStream **out) {
  QueueRef queue = api_.DPCTLQueue_Copy(reinterpret_cast<QueueRef>(handle));
  if (queue == nullptr)
    return fail(GMM_ERROR_INVALID_HANDLE, "Stream %p is no SYCL queue; pass a live DPCTLSyclQueueRef.",
                static_cast<void *>(handle));
  ContextRef context = api_.DPCTLQueue_GetContext(queue);
  DeviceRef device = api_.DPCTLQueue_GetDevice(queue);
  int32_t ordinal = -1;
  if (context != nullptr && device != nullptr && api_.DPCTLContext_AreEq(context, context_))
    for (uint32_t i = 0; i < device_count_ && ordinal < 0; ++i)
      if (api_.DPCTLDevice_AreEq(device, devices_[i])) ordinal = static_cast<int32_t>(i);
  if (context != nullptr) api_.DPCTLContext_Delete(context);
  if (device != nullptr) api_.DPCTLDevice_Delete(device);
  Status status = ordinal < 0
                      ? fail(GMM_ERROR_INVALID_HANDLE,
                             "Stream %p is a SYCL queue of another SYCL context or platform, which cannot use "
                             "gmm's memory; make the queue for a device of gmm's platform in its default context.",
                             static_cast<void *>(handle))
                      : add(queue, Device{ordinal}, false, out);
  if (!status.ok()) {
    api_.DPCTLQueue_Delete(queue);
    return status;
  }
  (*out)->handle = handle;
  return status;
}

Status SyclStreamTable::acquire(Device device, gmm_stream handle, SyclStream **out) {
  LockGuard lock(mutex_);
  if (handle == GMM_STREAM_PER_THREAD) return acquire_of_thread(device, out);
  if (handle == GMM_STREAM_DEFAULT || handle == GMM_STREAM_LEGACY) {
    SyclStream *&stream = defaults_[device.ordinal];
    if (stream == nullptr) GMM_TRY(add_new(device, &stream));
    ++stream->references;
    *out = stream;
    return Status();
  }
  for (SyclStream *each : streams_)
    if (each->handle == handle) {
      ++each->references;
      *out = each;
      return Status();
    }
  return adopt(handle, out);
}

Status SyclStreamTable::acquire_of_thread(Device device, SyclStream **out) {
  SyclStream *stream = by_thread_.find(device);
  if (stream == nullptr) {
    if (!by_thread_.reserve()) return no_memory_for("Creating a stream");
    GMM_TRY(add_new(device, &stream));
    by_thread_.add_reserved(device, stream);
  }
  ++stream->references;
  *out = stream;
  return Status();
}

void SyclStreamTable::drop(SyclStream *stream) {
  if (--stream->references != 0) return;
  for (uint64_t i = 0; i < streams_.size(); ++i)
    if (streams_[i] == stream) {
      streams_.erase(i);
      break;
    }
  allocator_.destroy(stream);
}

void SyclStreamTable::release(SyclStream *stream) {
  LockGuard lock(mutex_);
  drop(stream);
}

Status SyclStreamTable::remove(gmm_stream handle, SyclStream **out) {
  LockGuard lock(mutex_);
  for (SyclStream *each : streams_)
    if (each->handle == handle && handle != nullptr && each->owned) {
      // Another queue may soon have this address.
      each->handle = nullptr;
      *out = each;
      return Status();
    }
  return fail(GMM_ERROR_INVALID_HANDLE,
              "Stream %p is not a stream that this context created, or was destroyed; pass a live one.",
              static_cast<void *>(handle));
}

void SyclStreamTable::put_back(gmm_stream handle, SyclStream *stream) {
  LockGuard lock(mutex_);
  stream->handle = handle;
}

SyclStream *SyclStreamTable::next(Device device, uint64_t after) {
  LockGuard lock(mutex_);
  for (SyclStream *each : streams_) {
    if (each->id <= after || each->device != device) continue;
    ++each->references;
    return each;
  }
  return nullptr;
}

void SyclStreamTable::close() {
  for (uint64_t last = 0;;) {
    SyclStream *stream = nullptr;
    {
      LockGuard lock(mutex_);
      for (SyclStream *each : streams_)
        if (stream == nullptr && each->id > last) stream = each;
      if (stream == nullptr) break;
      ++stream->references;
      last = stream->id;
    }
    if (!stream->synchronize().ok()) log_.write(LogLevel::kWarning, "The wait for a stream failed: %s", last_message());
    release(stream);
  }
  LockGuard lock(mutex_);
  while (workers_ != 0) worker_ended_.wait(mutex_);
  for (SyclStream *each : streams_) allocator_.destroy(each);
  streams_.clear();
  by_thread_.clear();
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
