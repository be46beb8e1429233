// SPDX-License-Identifier: Apache-2.0
#include "backend/sycl/sycl_stream_table.h"

namespace gmm::sycl {

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
    stream = allocator_.create<SyclStream>(platform_.api, allocator_, log_, *this, queue, Device{ordinal}, last_id_ + 1,
                                           false);
  if (stream == nullptr) {
    platform_.api.DPCTLQueue_Delete(queue);
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
