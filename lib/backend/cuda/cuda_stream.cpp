// SPDX-License-Identifier: Apache-2.0
// Streams, events, and the work that is queued on them.
#if defined(GMM_WITH_CUDA)

#include <cinttypes>
#include <cstring>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {
namespace {

void *shown(gmm_stream stream) { return static_cast<void *>(stream); }

struct HostCopy {
  HostAllocator allocator;
  void *destination;
  const void *source;
  uint64_t size;

  static void CUDA_CB run(void *self) {
    HostCopy *copy = static_cast<HostCopy *>(self);
    std::memcpy(copy->destination, copy->source, copy->size);
    const HostAllocator allocator = copy->allocator;
    allocator.destroy(copy);
  }
};

}  // namespace

Status CudaBackend::stream_create(Device device, gmm_stream *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUstream stream = nullptr;
  Status status = driver_.check(driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (!status.ok()) return prefix(status, "Making a stream on CUDA device %d: ", device.ordinal);
  *out = reinterpret_cast<gmm_stream>(stream);
  return Status();
}

Status CudaBackend::stream_destroy(gmm_stream stream) {
  if (is_special(stream))
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Destroying stream %p: a default stream is never destroyed; pass one that was made.", shown(stream));
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CUcontext own = nullptr;
  Status status = driver_.check(driver_.cuStreamGetCtx(to_driver(stream), &own), "cuStreamGetCtx");
  if (status.ok()) status = guard.enter(own);
  if (status.ok()) status = stream_synchronize(Device{0}, stream);
  if (status.ok()) {
    CaptureGuard capture(driver_);
    status = driver_.check(driver_.cuStreamDestroy(to_driver(stream)), "cuStreamDestroy");
  }
  return status.ok() ? status : prefix(status, "Destroying stream %p: ", shown(stream));
}

Status CudaBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  CaptureGuard capture(driver_);
  const CUresult result = driver_.cuStreamQuery(to_driver(stream));
  *idle = result == CUDA_SUCCESS;
  if (result == CUDA_ERROR_NOT_READY) return Status();
  Status status = driver_.check(result, "cuStreamQuery");
  return status.ok() ? status : prefix(status, "Asking whether stream %p is idle: ", shown(stream));
}

Status CudaBackend::stream_synchronize(Device device, gmm_stream stream) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  // Asked first, because waiting for a captured stream ends the capture.
  bool capturing = false;
  GMM_TRY(stream_is_capturing(device, stream, &capturing));
  if (capturing)
    return fail(
        GMM_ERROR_CAPTURING,
        "Waiting for stream %p: it is being captured into a graph, so its work does not run; end the capture first.",
        shown(stream));
  CaptureGuard capture(driver_);
  Status status = driver_.check(driver_.cuStreamSynchronize(to_driver(stream)), "cuStreamSynchronize");
  return status.ok() ? status : prefix(status, "Waiting for stream %p: ", shown(stream));
}

Status CudaBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  Status status = driver_.check(driver_.cuLaunchHostFunc(to_driver(stream), fn, user), "cuLaunchHostFunc");
  return status.ok() ? status : prefix(status, "Queueing a call on stream %p: ", shown(stream));
}

// Neither the driver's device memory nor managed memory: page-locked, or ordinary.
bool CudaBackend::is_host_memory(const void *address) const {
  CUmemorytype type = static_cast<CUmemorytype>(0);
  unsigned int managed = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void *values[] = {&type, &managed};
  if (driver_.cuPointerGetAttributes(2, which, values, to_driver(address)) != CUDA_SUCCESS) return false;
  return type != CU_MEMORYTYPE_DEVICE && managed == 0;
}

// The driver's copy between host and host blocks the caller until the stream has come that far ("API synchronization
// behavior" in its manual), and so would hold up a caller who has yet to let the stream go on. A call on the
// stream is queued as promised. Between a device and ordinary host memory the driver may block likewise.
Status CudaBackend::copy_on_host(Device device, gmm_stream stream, void *destination, const void *source,
                                 uint64_t size) {
  HostCopy *copy = allocator_.create<HostCopy>(HostCopy{allocator_, destination, source, size});
  if (copy == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "Copying %" PRIu64 " bytes from %p to %p: the host allocator gave no %zu bytes; free memory.", size,
                source, destination, sizeof(HostCopy));
  Status status = stream_call(device, stream, &HostCopy::run, copy);
  if (!status.ok()) allocator_.destroy(copy);
  return status;
}

Status CudaBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  if (size == 0) return Status();
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  if (is_host_memory(destination) && is_host_memory(source)) {
    bool capturing = false;
    GMM_TRY(stream_is_capturing(device, stream, &capturing));
    // A graph may run its copy many times, and the driver does not block for it.
    if (!capturing) return copy_on_host(device, stream, destination, source, size);
  }
  Status status = driver_.check(
      driver_.cuMemcpyAsync(to_driver(destination), to_driver(source), size, to_driver(stream)), "cuMemcpyAsync");
  if (status.ok()) return status;
  return prefix(status, "Copying %" PRIu64 " bytes from %p to %p on stream %p: ", size, source, destination,
                shown(stream));
}

Status CudaBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  if (size == 0) return Status();
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  Status status =
      driver_.check(driver_.cuMemsetD8Async(to_driver(destination), value, size, to_driver(stream)), "cuMemsetD8Async");
  if (status.ok()) return status;
  return prefix(status, "Filling %" PRIu64 " bytes at %p on stream %p: ", size, destination, shown(stream));
}

Status CudaBackend::synchronize(Device device) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  Status status = driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
  return status.ok() ? status : prefix(status, "Waiting for CUDA device %d: ", device.ordinal);
}

Status CudaBackend::event_create(Device device, NativeEvent *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUevent event = nullptr;
  Status status = driver_.check(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  if (!status.ok()) return prefix(status, "Making an event on CUDA device %d: ", device.ordinal);
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status CudaBackend::event_destroy(NativeEvent event) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  return driver_.check(driver_.cuEventDestroy(to_driver(event)), "cuEventDestroy");
}

// Stream and event must be of one context: events are made in the primary one, so a stream of another context is
// refused by the driver instead of being ordered wrongly.
Status CudaBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  Status status = driver_.check(driver_.cuEventRecord(to_driver(event), to_driver(stream)), "cuEventRecord");
  return status.ok()
             ? status
             : prefix(status, "Recording an event of CUDA device %d on stream %p: ", device.ordinal, shown(stream));
}

Status CudaBackend::event_synchronize(NativeEvent event) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  return driver_.check(driver_.cuEventSynchronize(to_driver(event)), "cuEventSynchronize");
}

Status CudaBackend::event_query(NativeEvent event, bool *passed) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  const CUresult result = driver_.cuEventQuery(to_driver(event));
  if (result == CUDA_ERROR_NOT_READY) {
    *passed = false;
    return Status();
  }
  GMM_TRY(driver_.check(result, "cuEventQuery"));
  *passed = true;
  return Status();
}

Status CudaBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  Status status = driver_.check(driver_.cuStreamWaitEvent(to_driver(stream), to_driver(event), CU_EVENT_WAIT_DEFAULT),
                                "cuStreamWaitEvent");
  return status.ok() ? status : prefix(status, "Making stream %p wait for an event: ", shown(stream));
}

}  // namespace gmm::cuda

#endif
