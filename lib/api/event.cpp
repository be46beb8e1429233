// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "base/process.h"
#include "base/thread.h"

using namespace gmm;

namespace {

Status check_event(const gmm_event *event) {
  GMM_TRY(check_handle(event, "gmm_event", "event"));
  return Context::check(event->context);
}

// An event is a point in a stream's order, unless it is a semaphore, which checks values itself.
Status check_value(uint64_t value, const char *function) {
  if (value == 0) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "%s: value = %" PRIu64 ": the event is a point and has no values; pass 0.",
              function, value);
}

Status make_event(Context &context, Device device, gmm_event **out) {
  gmm_event *event = context.core.allocator.create<gmm_event>();
  if (event == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for an event; free memory.");
  event->context = &context;
  event->device = device;
  *out = event;
  return Status();
}

Status create(gmm_context *context, const gmm_event_desc *desc, gmm_event **out) {
  gmm_event_desc copy;
  gmm_event *event = nullptr;
  GMM_TRY(Context::check(context));
  GMM_TRY(check_not_null(out, "gmm_event_create", "out"));
  GMM_TRY(read_descriptor(desc, &copy));
  GMM_TRY(check_flags(copy.flags, GMM_EVENT_SHARED, "gmm_event_desc.flags"));
  GMM_TRY(check_zero(copy.reserved, "gmm_event_desc.reserved"));
  GMM_TRY(check_device(*context, copy.device));
  GMM_TRY(make_event(*context, Device{copy.device}, &event));
  const Status status = (copy.flags & GMM_EVENT_SHARED) != 0
                            ? context->ipc.events.create(event->device, &event->shared)
                            : context->core.backend->event_create(event->device, &event->native);
  if (!status.ok()) {
    context->core.allocator.destroy(event);
    return status;
  }
  if (event->shared != nullptr) event->native = event->shared->native;
  *out = event;
  return Status();
}

Status import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc, gmm_event **out) {
  gmm_ipc_import_desc copy;
  gmm_event *event = nullptr;
  GMM_TRY(Context::check(context));
  GMM_TRY(check_not_null(handle, "gmm_event_import", "handle"));
  GMM_TRY(check_not_null(out, "gmm_event_import", "out"));
  GMM_TRY(read_import(*context, desc, &copy));
  GMM_TRY(make_event(*context, Device{copy.device}, &event));
  const Status status =
      context->ipc.events.import_event(*handle, event->device, copy.timeout_ms, &event->import, &event->shared);
  if (!status.ok()) {
    context->core.allocator.destroy(event);
    return status;
  }
  if (event->shared != nullptr) event->device = event->shared->device;
  event->native = event->shared != nullptr ? event->shared->native : event->import->native;
  *out = event;
  return Status();
}

Status import_semaphore(gmm_context *context, const gmm_semaphore_desc *desc, gmm_event **out) {
  gmm_semaphore_desc copy;
  gmm_event *event = nullptr;
  GMM_TRY(Context::check(context));
  GMM_TRY(check_not_null(desc, "gmm_event_import_semaphore", "desc"));
  GMM_TRY(check_not_null(out, "gmm_event_import_semaphore", "out"));
  GMM_TRY(read_descriptor(desc, &copy));
  if (copy.type < GMM_SEMAPHORE_BINARY_FD || copy.type > GMM_SEMAPHORE_CALLS)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_semaphore_desc.type = %u; pass a GMM_SEMAPHORE_* type.", copy.type);
  GMM_TRY(check_device(*context, copy.device));
  GMM_TRY(make_event(*context, Device{copy.device}, &event));
  const Status status = Semaphore::import(context->core, copy, &event->semaphore);
  if (!status.ok()) {
    context->core.allocator.destroy(event);
    return status;
  }
  *out = event;
  return Status();
}

Status check_can_tell(const gmm_event &event, const char *function) {
  if (event.semaphore == nullptr) return Status();
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "%s: a semaphore of another API does not tell its value; record a plain event behind "
              "gmm_stream_wait_event() and ask that.",
              function);
}

Status has_passed(const gmm_event &event, const char *function, bool *passed) {
  if (event.import != nullptr) GMM_TRY(event.import->check(function));
  return event.context->core.backend->event_query(event.native, passed);
}

// Polls, because no driver's wait takes a time, and nobody would end a wait for another process that dies.
Status wait_until(const gmm_event &event, uint64_t timeout_ms) {
  constexpr uint64_t kLongestUs = 1000;
  const uint64_t start = monotonic_ms();
  for (uint64_t pause = 5;; pause = pause * 2 < kLongestUs ? pause * 2 : kLongestUs) {
    bool passed = false;
    GMM_TRY(has_passed(event, "gmm_event_synchronize", &passed));
    if (passed) return Status();
    if (monotonic_ms() - start >= timeout_ms)
      return fail(GMM_ERROR_NOT_READY,
                  "gmm_event_synchronize(%p): the event has not passed in %" PRIu64 " ms; wait again.",
                  static_cast<const void *>(&event), timeout_ms);
    sleep_us(pause);
  }
}

}  // namespace

gmm_result gmm_event_create(gmm_context *context, const gmm_event_desc *desc, gmm_event **out) noexcept {
  return result_of(create(context, desc, out), out);
}

gmm_result gmm_event_destroy(gmm_event *event) noexcept {
  if (event == nullptr) return GMM_OK;
  Status status = check_event(event);
  if (!status.ok()) return result_of(status);
  Context &context = *event->context;
  status = event->shared != nullptr      ? context.ipc.events.destroy(event->shared)
           : event->import != nullptr    ? context.ipc.events.close_import(event->import)
           : event->semaphore != nullptr ? event->semaphore->destroy()
                                         : context.core.backend->event_destroy(event->native);
  if (!status.ok()) return result_of(status);
  event->magic = 0;
  context.core.allocator.destroy(event);
  return GMM_OK;
}

gmm_result gmm_event_record(gmm_event *event, uint64_t value, gmm_stream stream) noexcept {
  Status status = check_event(event);
  if (status.ok() && event->semaphore != nullptr) return result_of(event->semaphore->signal(stream, value));
  if (status.ok()) status = check_value(value, "gmm_event_record");
  if (status.ok() && event->import != nullptr)
    status = fail(GMM_ERROR_INVALID_HANDLE,
                  "gmm_event_record: the event was imported, and only its maker records it; create another one for the "
                  "way back.");
  if (status.ok()) status = event->context->core.backend->event_record(event->native, event->device, stream);
  return result_of(status);
}

gmm_result gmm_stream_wait_event(gmm_context *context, gmm_stream stream, gmm_event *event, uint64_t value) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_event(event);
  if (status.ok() && event->context != context)
    status = fail(GMM_ERROR_INVALID_HANDLE,
                  "gmm_stream_wait_event: %p is an event of another context; pass one of "
                  "this.",
                  static_cast<const void *>(event));
  if (status.ok() && event->semaphore != nullptr) return result_of(event->semaphore->wait(stream, value));
  if (status.ok()) status = check_value(value, "gmm_stream_wait_event");
  if (status.ok() && event->import != nullptr) status = event->import->check("gmm_stream_wait_event");
  if (status.ok())
    status = event->shared != nullptr || event->import != nullptr
                 ? context->core.backend->shared_event_wait(event->device, stream, event->native)
                 : context->core.backend->stream_wait(event->device, stream, event->native);
  return result_of(status);
}

gmm_result gmm_event_synchronize(gmm_event *event, uint64_t value, uint64_t timeout_ms) noexcept {
  Status status = check_event(event);
  if (status.ok()) status = check_can_tell(*event, "gmm_event_synchronize");
  if (status.ok()) status = check_value(value, "gmm_event_synchronize");
  if (status.ok())
    status = event->import == nullptr && timeout_ms == GMM_FOREVER
                 ? event->context->core.backend->event_synchronize(event->native)
                 : wait_until(*event, timeout_ms);
  return result_of(status);
}

gmm_result gmm_event_query(gmm_event *event, uint64_t *out) noexcept {
  bool passed = false;
  Status status = check_event(event);
  if (status.ok()) status = check_not_null(out, "gmm_event_query", "out");
  if (status.ok()) status = check_can_tell(*event, "gmm_event_query");
  if (status.ok()) status = has_passed(*event, "gmm_event_query", &passed);
  if (status.ok()) *out = passed ? 1 : 0;
  return result_of(status);
}

gmm_result gmm_event_export(gmm_event *event, gmm_ipc_handle *out) noexcept {
  Status status = check_event(event);
  if (status.ok()) status = check_not_null(out, "gmm_event_export", "out");
  if (status.ok() && event->shared == nullptr)
    status = fail(GMM_ERROR_INVALID_HANDLE, "gmm_event_export: %s.",
                  event->import != nullptr      ? "the event was imported; only the process that made it can export it"
                  : event->semaphore != nullptr ? "the event is a semaphore; the API that made it exports it"
                                                : "the event cannot be shared; make it with GMM_EVENT_SHARED");
  if (status.ok()) status = event->context->ipc.events.export_event(*event->shared, out);
  return result_of(status);
}

gmm_result gmm_event_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                            gmm_event **out) noexcept {
  return result_of(import(context, handle, desc, out), out);
}

gmm_result gmm_event_import_semaphore(gmm_context *context, const gmm_semaphore_desc *desc, gmm_event **out) noexcept {
  return result_of(import_semaphore(context, desc, out), out);
}
