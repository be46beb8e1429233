// SPDX-License-Identifier: Apache-2.0
// Events.
#include "stream.h"

using namespace fake;

namespace {

std::map<CUevent, std::shared_ptr<Event>> &events() { return forever<std::map<CUevent, std::shared_ptr<Event>>>(); }

// The host may not ask about an event that was recorded into a graph.
CUresult refuse_captured_event(const Event &event) {
  if (!event.capture) return CUDA_SUCCESS;
  event.capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult elapsed(float *milliseconds, CUevent first, CUevent second) {
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  auto start = find_event(first), end = find_event(second);
  if (!start || !end || start->context != end->context) return CUDA_ERROR_INVALID_HANDLE;
  for (auto &event : {start, end}) {
    if (CUresult captured = refuse_captured_event(*event)) return captured;
    if ((event->flags & CU_EVENT_DISABLE_TIMING) || !event->marker) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->marker->done || !end->marker->done) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end->marker->when - start->marker->when).count();
  return CUDA_SUCCESS;
}

}  // namespace

namespace fake {
std::shared_ptr<Event> find_event(CUevent handle) {
  auto it = events().find(handle);
  return it == events().end() ? nullptr : it->second;
}
CUevent add_event(std::shared_ptr<Event> event) {
  CUevent handle = reinterpret_cast<CUevent>(event.get());
  events()[handle] = std::move(event);
  return handle;
}
uint64_t created_events() { return events().size(); }
void release_context_events(Context *context) {
  state().dropped += std::erase_if(events(), [&](auto &entry) { return entry.second->context == context; });
}
}  // namespace fake

extern "C" {

CUresult cuCtxRecordEvent(CUcontext value, CUevent handle);

CUresult cuEventCreate(CUevent *out, unsigned int flags) {
  FAKE_CUDA_ENTER(cuEventCreate);
  bool interprocess = flags & CU_EVENT_INTERPROCESS;
  if (!out || flags > 7 || (interprocess && !(flags & CU_EVENT_DISABLE_TIMING))) return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  auto event = std::make_shared<Event>();
  event->context = context;
  event->flags = flags;
  if (interprocess && !(event->page = make_page())) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = add_event(std::move(event));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  FAKE_CUDA_IN_CONTEXT(cuEventDestroy_v2);
  return events().erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  FAKE_CUDA_IN_CONTEXT(cuEventRecord);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  FAKE_CUDA_STREAM(stream, stream_handle);
  if (stream->context != event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (event->imported) return CUDA_ERROR_NOT_PERMITTED;  // stricter than the driver
  std::shared_ptr<Marker> marker;
  auto capture = stream->capture;
  if (capture && event->page) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  uint64_t number = event->page ? next_record(*event->page) : 0;
  auto record = [page = event->page, number] {
    if (page) pass_record(*page, number);
    return CUDA_SUCCESS;
  };
  if (CUresult wrong = enqueue(stream, record, {}, &marker)) return wrong;
  event->marker = marker;
  event->capture = capture;
  event->recorded_in = stream;
  return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext value, CUevent handle) {
  FAKE_CUDA_ENTER(cuCtxRecordEvent);
  auto event = find_event(handle);
  if (!event || reinterpret_cast<CUcontext>(event->context) != value) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult capturing = refuse_capturing_context(event->context)) return capturing;
  event->marker = mark_context(event->context);
  event->capture = nullptr;
  event->recorded_in.reset();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  FAKE_CUDA_IN_CONTEXT(cuEventQuery);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult captured = refuse_captured_event(*event)) return captured;
  if (CUresult unsafe = refuse_during_capture()) return unsafe;
  if (event->context->error) return event->context->error;
  if (event->imported) return has_passed(*event->page, last_record(*event->page)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  return !event->marker || event->marker->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  FAKE_CUDA_IN_CONTEXT(cuEventSynchronize);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult captured = refuse_captured_event(*event)) return captured;
  if (CUresult unsafe = refuse_during_capture()) return unsafe;
  if (event->imported) {
    uint64_t number = last_record(*event->page);
    lock.unlock();
    wait_for_record(*event->page, number);
    return CUDA_SUCCESS;
  }
  wait_for(event->marker, lock);
  return event->context->error;
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuStreamWaitEvent, flags);
  auto event = find_event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  FAKE_CUDA_STREAM(stream, stream_handle);
  if (event->page && event->context != stream->context)
    crash("cuStreamWaitEvent of a stream for an event between processes of another context");
  if (event->imported) {
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return enqueue(stream, [page = event->page, number = last_record(*event->page)] {
      wait_for_record(*page, number);
      return CUDA_SUCCESS;
    });
  }
  if (event->capture && event->capture->origin) {
    if (stream->legacy) return refuse_captured_event(*event), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture && stream->capture != event->capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (!stream->capture) {
      stream->capture = event->capture;  // the stream joins the capture
      stream->joined = false;
    } else if (auto other = event->recorded_in.lock(); other && other != stream) {
      other->joined = true;
    }
    return CUDA_SUCCESS;
  }
  if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;  // of a capture that has ended
  if (stream->capture) {
    if (!event->marker) return CUDA_SUCCESS;
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!event->marker || event->marker->done) return CUDA_SUCCESS;
  return enqueue(stream, [] { return CUDA_SUCCESS; }, {event->marker});
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second) {
  FAKE_CUDA_IN_CONTEXT(cuEventElapsedTime);
  return elapsed(milliseconds, first, second);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent second) {
  FAKE_CUDA_IN_CONTEXT(cuEventElapsedTime_v2);
  return elapsed(milliseconds, first, second);
}

}  // extern "C"
