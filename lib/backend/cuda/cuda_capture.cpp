// SPDX-License-Identifier: Apache-2.0
// Streams that are being captured into a graph.
#if defined(GMM_WITH_CUDA)

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {

// The driver needs no context to look at a stream that was made. A per-thread default stream is that of the current context.
bool CudaBackend::may_be_capturing(Device device, gmm_stream stream) {
  if (is_special(stream)) {
    if (stream != GMM_STREAM_PER_THREAD) return false;  // the legacy stream cannot be captured
    CUcontext now = nullptr;
    if (device.ordinal < 0 || static_cast<uint32_t>(device.ordinal) >= device_count_ ||
        driver_.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now == nullptr ||
        now != devices_[device.ordinal].primary.load(std::memory_order_acquire))
      return true;
  }
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver_.cuStreamIsCapturing(to_driver(stream), &state) != CUDA_SUCCESS ||
         state != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status CudaBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(to_driver(stream), &state);
  // The legacy stream's answer while a stream that waits for it is captured: using it now would end that capture.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    *out = true;
    return Status();
  }
  Status status = driver_.check(result, "cuStreamIsCapturing");
  if (!status.ok()) return prefix(status, "Asking whether stream %p is captured: ", static_cast<void *>(stream));
  *out = state != CU_STREAM_CAPTURE_STATUS_NONE;
  return Status();
}

Status CudaBackend::capture_of(Device device, gmm_stream stream, Capture *out) {
  *out = Capture();
  if (driver_.capture_info == nullptr) return driver_.missing("cuStreamGetCaptureInfo");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_stream(guard, device, stream));
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  Status status = driver_.check(driver_.capture_info(to_driver(stream), &state, &id, &graph, nullptr, nullptr),
                                "cuStreamGetCaptureInfo");
  if (!status.ok())
    return prefix(status, "Asking which graph stream %p is captured into: ", static_cast<void *>(stream));
  if (state == CU_STREAM_CAPTURE_STATUS_NONE) return Status();
  if (state != CU_STREAM_CAPTURE_STATUS_ACTIVE)
    return fail(
        GMM_ERROR_CAPTURING,
        "The capture of stream %p has failed and no graph comes of it; end it with cuStreamEndCapture, and look "
        "for the call that was not allowed in it.",
        static_cast<void *>(stream));
  out->id = id;
  out->graph = graph;
  return Status();
}

Status CudaBackend::at_end_of_graph(Device device, void *graph, void (*fn)(void *), void *user) {
  Status status;
  if (driver_.cuUserObjectCreate == nullptr || driver_.cuUserObjectRelease == nullptr ||
      driver_.cuGraphRetainUserObject == nullptr)
    status = driver_.missing("cuUserObjectCreate");
  ContextGuard guard(driver_, log_);
  if (status.ok()) status = enter(guard, device);
  if (!status.ok()) {
    fn(user);
    return status;
  }
  CaptureGuard capture(driver_);
  CUuserObject object = nullptr;
  status = driver_.check(driver_.cuUserObjectCreate(&object, user, fn, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                         "cuUserObjectCreate");
  if (!status.ok()) {
    fn(user);
    return prefix(status, "Tying memory to the graph that is being captured: ");
  }
  // The graph may be added to while it is captured (CUDA driver API, cuStreamGetCaptureInfo).
  status =
      driver_.check(driver_.cuGraphRetainUserObject(static_cast<CUgraph>(graph), object, 1, CU_GRAPH_USER_OBJECT_MOVE),
                    "cuGraphRetainUserObject");
  if (status.ok()) return status;
  prefix(status, "Tying memory to the graph that is being captured: ").ignore();  // returned below
  // A second try, as nobody else will ever let go of it.
  if (driver_.cuUserObjectRelease(object, 1) != CUDA_SUCCESS && driver_.cuUserObjectRelease(object, 1) != CUDA_SUCCESS)
    fn(user);
  return status;
}

}  // namespace gmm::cuda

#endif
