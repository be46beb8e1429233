// SPDX-License-Identifier: Apache-2.0
// Stream capture: recorded work, forbidden calls, and calls that spoil it.
#include "stream.h"

namespace fake {
std::vector<std::shared_ptr<Stream>> streams_in(const Capture *capture);
void for_captures(const std::function<void(Capture &)> &each);
}  // namespace fake

using namespace fake;

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
uint64_t next_capture = 1;

CUstreamCaptureStatus status_of(const Stream &stream) {
  return !stream.capture               ? CU_STREAM_CAPTURE_STATUS_NONE
         : stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph = nullptr) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  FAKE_CUDA_STREAM(stream, handle);
  if (CUresult implicit = refuse_implicit(stream, false)) return implicit;  // asking spoils nothing
  *status = status_of(*stream);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;  // nothing else is set then
  if (id) *id = stream->capture->id;
  if (graph) *graph = handle_of(stream->capture->graph);
  return CUDA_SUCCESS;
}

}  // namespace

namespace fake {

CUresult refuse_during_capture() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for_captures([&](Capture &capture) {
    bool mine = capture.thread == std::this_thread::get_id() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) return;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  });
  return result;
}

CUresult refuse_capturing_context(Context *context) {
  CUresult result = CUDA_SUCCESS;
  for_captures([&](Capture &capture) {
    if (capture.origin->context != context) return;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  });
  return result;
}

}  // namespace fake

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  FAKE_CUDA_ENTER(cuThreadExchangeStreamCaptureMode, !mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED);
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_CUDA_ON_STREAM(cuStreamBeginCapture_v2, handle, mode > CU_STREAM_CAPTURE_MODE_RELAXED);
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>(
      Capture{next_capture++, mode, std::this_thread::get_id(), stream.get(), std::make_shared<Graph>()});
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
  FAKE_CUDA_ON_STREAM(cuStreamEndCapture, handle, !out);
  *out = nullptr;
  auto capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  for (auto &part : streams_in(capture.get())) {
    if (part != stream && !part->joined && !result) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    part->capture = nullptr;
    part->joined = false;
  }
  capture->origin = nullptr;
  CUgraph graph = handle_of(capture->graph);
  capture->graph = nullptr;  // events may keep the capture
  if (result)
    drop_graph(graph);
  else
    *out = graph;
  return result;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  FAKE_CUDA_ENTER(cuStreamIsCapturing);
  return capture_info(handle, status, nullptr);
}

// Nodes are not shown.
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count) {
  FAKE_CUDA_ENTER(cuStreamGetCaptureInfo_v2);
  if (dependencies || count) return CUDA_ERROR_NOT_SUPPORTED;
  return capture_info(handle, status, id, graph);
}

}  // extern "C"
