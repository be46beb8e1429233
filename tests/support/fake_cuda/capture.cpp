// SPDX-License-Identifier: Apache-2.0
// Stream capture, as far as others must notice it: what is forbidden meanwhile, and what spoils it. The graph is empty.
#include "stream.h"

namespace fake {
std::vector<std::shared_ptr<Stream>> streams_in(const Capture *capture);
void for_captures(const std::function<void(Capture &)> &each);
}  // namespace fake

using namespace fake;

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
uint64_t next_capture = 1;
std::set<CUgraph> &graphs() {
  static auto *all = new std::set<CUgraph>;
  return *all;
}

CUstreamCaptureStatus status_of(const Stream &stream) {
  return !stream.capture               ? CU_STREAM_CAPTURE_STATUS_NONE
         : stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// Also of a default stream. `stream` comes back with the lock held by the caller.
CUresult look_up(CUstream handle, std::shared_ptr<Stream> *stream) {
  FAKE_CUDA_CONTEXT(context);
  return find_stream(handle, context, stream);
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult wrong = look_up(handle, &stream)) return wrong;
  if (CUresult implicit = refuse_implicit(stream, false)) return implicit;  // asking spoils nothing
  *status = status_of(*stream);
  if (id) *id = stream->capture ? stream->capture->id : 0;
  return CUDA_SUCCESS;
}

}  // namespace

namespace fake {

bool is_capturing(const std::shared_ptr<Stream> &stream) { return stream->capture != nullptr; }

CUresult refuse_during_capture(Context *context) {
  (void)context;  // the prohibition does not ask for which device
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

CUresult refuse_captured(const std::shared_ptr<Stream> &stream) {
  if (!stream->capture) return CUDA_SUCCESS;
  stream->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace fake

extern "C" {

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  FAKE_CUDA_ENTER(cuThreadExchangeStreamCaptureMode);
  if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_CUDA_ENTER(cuStreamBeginCapture_v2);
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult wrong = look_up(handle, &stream)) return wrong;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>(Capture{next_capture++, mode, std::this_thread::get_id(), stream.get()});
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *out) {
  FAKE_CUDA_ENTER(cuStreamEndCapture);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  std::shared_ptr<Stream> stream;
  if (CUresult wrong = look_up(handle, &stream)) return wrong;
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
  if (result) return result;
  *out = reinterpret_cast<CUgraph>(capture->id << 4);
  graphs().insert(*out);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  FAKE_CUDA_ENTER(cuGraphDestroy);
  return graphs().erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  FAKE_CUDA_ENTER(cuStreamIsCapturing);
  return capture_info(handle, status, nullptr);
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
  FAKE_CUDA_ENTER(cuStreamGetCaptureInfo);
  return capture_info(handle, status, id);
}

// The graph of a running capture is not built here.
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                           CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
  FAKE_CUDA_ENTER(cuStreamGetCaptureInfo_v2);
  if (graph || dependencies || count) return CUDA_ERROR_NOT_SUPPORTED;
  return capture_info(handle, status, id);
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                           CUgraph *graph, const CUgraphNode **dependencies,
                                           const CUgraphEdgeData **edges, size_t *count) {
  FAKE_CUDA_ENTER(cuStreamGetCaptureInfo_v3);
  if (graph || dependencies || edges || count) return CUDA_ERROR_NOT_SUPPORTED;
  return capture_info(handle, status, id);
}

}  // extern "C"
