// SPDX-License-Identifier: Apache-2.0
// Streams and events, as the seam asks for them.
#include "backend/host/host_class.h"

namespace gmm {
namespace {

HostEvent *event_of(NativeEvent event) { return reinterpret_cast<HostEvent *>(event); }

Status no_event() {
  return fail(GMM_ERROR_INVALID_HANDLE, "An event that is NULL: pass one that event_create() gave.");
}

// NULL for an event that this process made.
HostSharedEvent *imported_of(NativeEvent event) {
  HostSharedEvent *shared = event_of(event)->shared();
  return shared != nullptr && shared->imported() ? shared : nullptr;
}

Status maker_gone() {
  return fail(GMM_ERROR_IPC_PEER_GONE, "Waiting for an event: the process that made it ended before.");
}

Status own_thread() {
  return fail(GMM_ERROR_BUSY,
              "Waiting for a stream in a call that runs on it: it would never end; wait on another thread.");
}

// Drops a stream's reference at the end of a block.
class StreamReference {
 public:
  StreamReference() = default;
  ~StreamReference() {
    if (stream != nullptr) stream->release();
  }
  StreamReference(const StreamReference &) = delete;
  StreamReference &operator=(const StreamReference &) = delete;
  HostStream *operator->() const { return stream; }
  HostStream *stream = nullptr;
};

}  // namespace

Status HostBackend::stream_of(Device device, gmm_stream stream, HostStream **out) {
  // The device only counts for the special values.
  if (stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD)
    GMM_TRY(check_device(device));
  return streams_.acquire(device, stream, out);
}

Status HostBackend::stream_create(Device device, gmm_stream *out) {
  GMM_TRY(check_device(device));
  return streams_.create(device, out);
}

Status HostBackend::stream_destroy(gmm_stream stream) {
  StreamReference target;
  GMM_TRY(streams_.remove(stream, &target.stream));
  target->close();
  return Status();
}

Status HostBackend::stream_synchronize(Device device, gmm_stream stream) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  if (target->is_own_thread()) return own_thread();
  target->synchronize(target->position());
  return Status();
}

Status HostBackend::stream_is_capturing(Device device, gmm_stream stream, bool *out) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  *out = false;
  return Status();
}

Status HostBackend::stream_query(Device device, gmm_stream stream, bool *idle) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  *idle = target->passed(target->position());
  return Status();
}

Status HostBackend::stream_call(Device device, gmm_stream stream, void (*fn)(void *), void *user) {
  if (fn == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "Queueing a call: the function is NULL; pass one.");
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return target->call(fn, user);
}

Status HostBackend::copy(Device device, gmm_stream stream, void *destination, const void *source, uint64_t size) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->copy(destination, source, size);
}

Status HostBackend::fill(Device device, gmm_stream stream, void *destination, uint8_t value, uint64_t size) {
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return size == 0 ? Status() : target->fill(destination, value, size);
}

Status HostBackend::synchronize(Device device) {
  GMM_TRY(check_device(device));
  uint64_t last = 0;
  for (;;) {
    StreamReference target;
    target.stream = streams_.next(device, last);
    if (target.stream == nullptr) return Status();
    if (target->is_own_thread()) return own_thread();
    target->synchronize(target->position());
    last = target->id;
  }
}

Status HostBackend::event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostEvent *event = allocator_.create<HostEvent>();
  if (event == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "Making an event: no memory for its description; free memory.");
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status HostBackend::event_destroy(NativeEvent event) {
  if (event == nullptr) return no_event();
  allocator_.destroy(event_of(event));
  return Status();
}

Status HostBackend::event_record(NativeEvent event, Device device, gmm_stream stream) {
  if (event == nullptr) return no_event();
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  return event_of(event)->record(target.stream);
}

Status HostBackend::event_synchronize(NativeEvent event) {
  if (event == nullptr) return no_event();
  if (const HostSharedEvent *shared = imported_of(event))
    return shared->wait(shared->recorded()) ? Status() : maker_gone();
  StreamReference target;
  uint64_t position = 0;
  target.stream = event_of(event)->get(&position);
  if (target.stream == nullptr || target->passed(position)) return Status();
  if (target->is_own_thread()) return own_thread();
  target->synchronize(position);
  return Status();
}

Status HostBackend::event_query(NativeEvent event, bool *passed) {
  if (event == nullptr) return no_event();
  if (const HostSharedEvent *shared = imported_of(event)) {
    *passed = shared->passed(shared->recorded());
    return Status();
  }
  StreamReference target;
  uint64_t position = 0;
  target.stream = event_of(event)->get(&position);
  *passed = target.stream == nullptr || target->passed(position);
  return Status();
}

Status HostBackend::stream_wait(Device device, gmm_stream stream, NativeEvent event) {
  if (event == nullptr) return no_event();
  StreamReference target;
  GMM_TRY(stream_of(device, stream, &target.stream));
  if (HostSharedEvent *shared = imported_of(event)) return target->wait_for(shared, shared->recorded());
  StreamReference source;
  uint64_t position = 0;
  source.stream = event_of(event)->get(&position);
  return source.stream == nullptr ? Status() : target->wait_for(source.stream, position);
}

Status HostBackend::make_event(HostSharedEvent *shared, NativeEvent *out) {
  HostEvent *event = allocator_.create<HostEvent>(shared);
  if (event == nullptr) {
    shared->release();
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "Making an event: no memory for its description; free memory.");
  }
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status HostBackend::shared_event_create(Device device, NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostSharedEvent *shared = nullptr;
  GMM_TRY(HostSharedEvent::create(allocator_, &shared));
  return make_event(shared, out);
}

Status HostBackend::shared_event_export(NativeEvent event, uint8_t[kLegacyHandleSize], int32_t *fd) {
  if (event == nullptr || event_of(event)->shared() == nullptr) return no_event();
  return event_of(event)->shared()->export_fd(fd);
}

Status HostBackend::shared_event_import(Device device, const uint8_t[kLegacyHandleSize], int32_t fd, const Peer &maker,
                                        NativeEvent *out) {
  GMM_TRY(check_device(device));
  HostSharedEvent *shared = nullptr;
  GMM_TRY(HostSharedEvent::open(allocator_, fd, maker, &shared));
  return make_event(shared, out);
}

}  // namespace gmm
