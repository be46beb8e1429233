// SPDX-License-Identifier: Apache-2.0
// Streams and events, as the seam asks for them.
#include "backend/sycl/sycl_class.h"

namespace gmm::sycl {
namespace {

// Where a stream was when it was last recorded. May be destroyed at any time: waits carry the mark itself.
struct SyclEvent {
  Mutex mutex;
  Mark *mark = nullptr;
};

SyclEvent *event_of(NativeEvent event) { return reinterpret_cast<SyclEvent *>(event); }

// The mark with a reference for the caller; NULL when the event was never recorded.
Mark *mark_of(NativeEvent event) {
  LockGuard lock(event_of(event)->mutex);
  Mark *mark = event_of(event)->mark;
  if (mark != nullptr) mark->retain();
  return mark;
}

Status no_event() {
  return fail(GMM_ERROR_INVALID_HANDLE, "An event that is NULL: pass one that event_create() gave.");
}

}  // namespace

Status SyclBackend::stream_of(Device device, gmm_stream stream, SyclStream **out) {
  // The device only counts for the special values.
  if (stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD)
    GMM_TRY(check_device(device));
  return streams_.acquire(device, stream, out);
}

Status SyclBackend::stream_create(Device device, gmm_stream *out) {
  GMM_TRY(check_device(device));
  return streams_.create(device, out);
}

Status SyclBackend::stream_destroy(gmm_stream stream) {
  StreamReference own(*this);
  GMM_TRY(streams_.remove(stream, &own.stream));
  return own->synchronize();
}

Status SyclBackend::stream_synchronize(Device device, gmm_stream stream) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->synchronize();
}

Status SyclBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  *out = false;
  return Status();
}

Status SyclBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->query(idle);
}

Status SyclBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  if (fn == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "Queueing a call: the function is NULL; pass one.");
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->call(fn, user);
}

Status SyclBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->copy(destination, source, size);
}

Status SyclBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->fill(destination, value, size);
}

Status SyclBackend::synchronize(Device device) {
  GMM_TRY(check_device(device));
  uint64_t last = 0;
  for (;;) {
    StreamReference target(*this);
    target.stream = streams_.next(device, last);
    if (target.stream == nullptr) return Status();
    GMM_TRY(target->synchronize());
    last = target->id;
  }
}

Status SyclBackend::event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  SyclEvent *event = allocator_.create<SyclEvent>();
  if (event == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "Making an event: no memory for its description; free memory.");
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status SyclBackend::event_destroy(NativeEvent event) {
  if (event == nullptr) return no_event();
  if (event_of(event)->mark != nullptr) event_of(event)->mark->release();
  allocator_.destroy(event_of(event));
  return Status();
}

Status SyclBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  if (event == nullptr) return no_event();
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  Mark *mark = nullptr;
  GMM_TRY(target->record(&mark));
  Mark *before = nullptr;
  {
    LockGuard lock(event_of(event)->mutex);
    before = event_of(event)->mark;
    event_of(event)->mark = mark;
  }
  if (before != nullptr) before->release();
  return Status();
}

Status SyclBackend::event_synchronize(NativeEvent event) {
  if (event == nullptr) return no_event();
  Mark *mark = mark_of(event);
  if (mark == nullptr) return Status();
  const Status status = mark->wait();
  mark->release();
  return status;
}

Status SyclBackend::event_query(NativeEvent event, bool *passed) {
  if (event == nullptr) return no_event();
  Mark *mark = mark_of(event);
  *passed = mark == nullptr || mark->passed();
  if (mark != nullptr) mark->release();
  return Status();
}

Status SyclBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  if (event == nullptr) return no_event();
  StreamReference target(*this);
  GMM_TRY(stream_of(device, stream, &target.stream));
  Mark *mark = mark_of(event);
  if (mark == nullptr) return Status();
  const Status status = target->wait_for(mark);
  mark->release();
  return status;
}

}  // namespace gmm::sycl
