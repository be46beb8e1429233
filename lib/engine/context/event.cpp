// SPDX-License-Identifier: Apache-2.0
#include "engine/context/event.h"

#include <cinttypes>

#include "base/process.h"
#include "base/thread.h"

using namespace gmm;

namespace {

// make(gmm_event &) -> Status gives it what it owns.
template <typename Fn>
Status make_event(Context &context, Device device, gmm_event **out, Fn make) {
  const HostAllocator &allocator = context.core().allocator;
  gmm_event *event = allocator.create<gmm_event>(context, device);
  if (event == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for an event; free memory.");
  const Status status = make(*event);
  if (status.ok())
    *out = event;
  else
    allocator.destroy(event);
  return status;
}

}  // namespace

Status gmm_event::create(Context &context, Device device, bool is_shared, gmm_event **out) {
  return make_event(context, device, out, [&](gmm_event &event) -> Status {
    if (!is_shared) return context.core().backend->event_create(device, &event.native);
    GMM_TRY(context.ipc().events.create(device, &event.shared));
    event.native = event.shared->native;
    return Status();
  });
}

Status gmm_event::import(Context &context, const gmm_ipc_handle &handle, Device device, uint64_t timeout_ms,
                         gmm_event **out) {
  return make_event(context, device, out, [&](gmm_event &event) -> Status {
    GMM_TRY(context.ipc().events.import_event(handle, device, timeout_ms, &event.maker, &event.native, &event.shared));
    if (event.shared == nullptr) return Status();
    event.device = event.shared->device;  // the context's own event
    event.native = event.shared->native;
    return Status();
  });
}

Status gmm_event::import_semaphore(Context &context, const gmm_semaphore_desc &desc, gmm_event **out) {
  return make_event(context, Device{desc.device}, out,
                    [&](gmm_event &event) -> Status { return event.semaphore.import(desc); });
}

Status gmm_event::destroy() {
  GMM_TRY(shared != nullptr         ? context->ipc().events.destroy(shared)
          : semaphore.is_imported() ? semaphore.destroy()
                                    : context->core().backend->event_destroy(native));
  magic = 0;
  context->core().allocator.destroy(this);
  return Status();
}

// An event is a point in a stream's order, unless it is a semaphore, which checks values itself.
Status gmm_event::check_value(uint64_t value, const char *function) const {
  if (value == 0) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "%s: value = %" PRIu64 ": the event is a point and has no values; pass 0.",
              function, value);
}

Status gmm_event::check_can_tell(const char *function) const {
  if (!semaphore.is_imported()) return Status();
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "%s: a semaphore of another API does not tell its value; record a plain event behind "
              "gmm_stream_wait_event() and ask that.",
              function);
}

Status gmm_event::has_passed(const char *function, bool *passed) const {
  if (is_imported()) GMM_TRY(maker.check(function));
  return context->core().backend->event_query(native, passed);
}

// Polls, because no driver's wait takes a time, and nobody would end a wait for another process that dies.
Status gmm_event::wait_until(uint64_t timeout_ms) const {
  constexpr uint64_t kLongestUs = 1000;
  const uint64_t start = monotonic_ms();
  for (uint64_t pause = 5;; pause = pause * 2 < kLongestUs ? pause * 2 : kLongestUs) {
    bool passed = false;
    GMM_TRY(has_passed("gmm_event_synchronize", &passed));
    if (passed) return Status();
    if (monotonic_ms() - start >= timeout_ms)
      return fail(GMM_ERROR_NOT_READY,
                  "gmm_event_synchronize(%p): the event has not passed in %" PRIu64 " ms; wait again.",
                  static_cast<const void *>(this), timeout_ms);
    sleep_us(pause);
  }
}

Status gmm_event::record(uint64_t value, gmm_stream stream) {
  if (semaphore.is_imported()) return semaphore.signal(stream, value);
  GMM_TRY(check_value(value, "gmm_event_record"));
  if (is_imported())
    return fail(GMM_ERROR_INVALID_HANDLE,
                "gmm_event_record: the event was imported, and only its maker records it; create another one for the "
                "way back.");
  return context->core().backend->event_record(native, device, stream);
}

Status gmm_event::wait_on(gmm_stream stream, uint64_t value) {
  if (semaphore.is_imported()) return semaphore.wait(stream, value);
  GMM_TRY(check_value(value, "gmm_stream_wait_event"));
  if (is_imported()) GMM_TRY(maker.check("gmm_stream_wait_event"));
  Backend &backend = *context->core().backend;
  return shared != nullptr || is_imported() ? backend.shared_event_wait(device, stream, native)
                                            : backend.stream_wait(device, stream, native);
}

Status gmm_event::synchronize(uint64_t value, uint64_t timeout_ms) {
  GMM_TRY(check_can_tell("gmm_event_synchronize"));
  GMM_TRY(check_value(value, "gmm_event_synchronize"));
  return !is_imported() && timeout_ms == GMM_FOREVER ? context->core().backend->event_synchronize(native)
                                                     : wait_until(timeout_ms);
}

Status gmm_event::query(bool *passed) {
  GMM_TRY(check_can_tell("gmm_event_query"));
  return has_passed("gmm_event_query", passed);
}

Status gmm_event::export_to(gmm_ipc_handle *out) {
  if (shared != nullptr) return context->ipc().events.export_event(*shared, out);
  return fail(GMM_ERROR_INVALID_HANDLE, "gmm_event_export: %s.",
              is_imported()             ? "the event was imported; only the process that made it can export it"
              : semaphore.is_imported() ? "the event is a semaphore; the API that made it exports it"
                                        : "the event cannot be shared; make it with GMM_EVENT_SHARED");
}
