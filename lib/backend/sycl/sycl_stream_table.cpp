// SPDX-License-Identifier: Apache-2.0
#include "backend/sycl/sycl_stream_table.h"

namespace gmm::sycl {

void SyclStreamTable::set_devices(ContextRef context, const DeviceRef *devices, uint32_t count) {
  context_ = context;
  devices_ = devices;
  device_count_ = count;
}

Status SyclStreamTable::make(Device device, uint64_t id, SyclStream **out) {
  QueueRef queue = api_.DPCTLQueue_Create(context_, devices_[device.ordinal], &Interface::device_failed, kInOrder);
  if (queue == nullptr) return api_.failed("DPCTLQueue_Create");
  *out = allocator_.create<SyclStream>(api_, allocator_, log_, *this, queue, device, id, true);
  if (*out != nullptr) return Status();
  api_.DPCTLQueue_Delete(queue);
  return no_memory_for("Creating a stream");
}

Status SyclStreamTable::find_unknown(gmm_stream handle, SyclStream **out) {
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
  SyclStream *stream = nullptr;
  if (ordinal >= 0 && streams_.reserve(streams_.size() + 1))
    stream = allocator_.create<SyclStream>(api_, allocator_, log_, *this, queue, Device{ordinal}, last_id_ + 1, false);
  if (stream == nullptr) {
    api_.DPCTLQueue_Delete(queue);
    if (ordinal >= 0) return no_memory_for("Creating a stream");
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Stream %p is a SYCL queue of another SYCL context or platform, which cannot use gmm's memory; make "
                "the queue for a device of gmm's platform in its default context.",
                static_cast<void *>(handle));
  }
  stream->handle = handle;
  add_reserved(stream);
  *out = stream;
  return Status();
}

void SyclStreamTable::close() {
  for_each([&](SyclStream &stream) {
    if (!stream.synchronize().ok()) log_.write(LogLevel::kWarning, "The wait for a stream failed: %s", last_message());
  });
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
