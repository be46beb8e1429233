// SPDX-License-Identifier: Apache-2.0
// Streams, the work on them, and events.
#include "api/arguments.h"
#include "engine/context/event.h"

using namespace gmm;

gmm_result gmm_stream_create(gmm_context *context, const gmm_stream_desc *desc, gmm_stream *out) noexcept {
  return make(context, "gmm_stream_create", out, [&]() -> Status {
    gmm_stream_desc copy;
    GMM_TRY(read_checked(desc, 0, &copy));
    GMM_TRY(check_device(*context, copy.device));
    return context->create_stream(Device{copy.device}, copy.priority, out);
  });
}

gmm_result gmm_stream_forget(gmm_context *context, gmm_stream stream) noexcept {
  return call(context, [&] { return context->forget_stream(stream); });
}

gmm_result gmm_stream_destroy(gmm_context *context, gmm_stream stream) noexcept {
  return call(context, [&] { return context->destroy_stream(stream); });
}

gmm_result gmm_stream_synchronize(gmm_context *context, gmm_stream stream) noexcept {
  return call(context, [&] { return context->synchronize(stream); });
}

gmm_result gmm_stream_call(gmm_context *context, gmm_stream stream, void (*fn)(void *user), void *user) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_function(fn, "gmm_stream_call"));
    return context->core().backend->stream_call(Device{0}, stream, fn, user);
  });
}

gmm_result gmm_copy(gmm_context *context, void *destination, const void *source, uint64_t size,
                    gmm_stream stream) noexcept {
  return call(context, [&]() -> Status {
    if (size == 0) return Status();
    GMM_TRY(check_not_null(destination, "gmm_copy", "destination"));
    GMM_TRY(check_not_null(source, "gmm_copy", "source"));
    return context->copy(destination, source, size, stream);
  });
}

gmm_result gmm_fill(gmm_context *context, void *destination, uint32_t value, uint64_t size,
                    gmm_stream stream) noexcept {
  return call(context, [&]() -> Status {
    if (value > 255)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_fill: value = %u does not fit a byte; pass 0 to 255.", value);
    if (size == 0) return Status();
    GMM_TRY(check_not_null(destination, "gmm_fill", "destination"));
    return context->fill(destination, static_cast<uint8_t>(value), size, stream);
  });
}

gmm_result gmm_record_use(gmm_context *context, const void *memory, gmm_stream stream) noexcept {
  return call(context, [&] { return context->record_use(memory, stream); });
}

gmm_result gmm_event_create(gmm_context *context, const gmm_event_desc *desc, gmm_event **out) noexcept {
  return make(context, "gmm_event_create", out, [&]() -> Status {
    gmm_event_desc copy;
    GMM_TRY(read_checked(desc, GMM_EVENT_SHARED, &copy));
    GMM_TRY(check_device(*context, copy.device));
    return gmm_event::create(*context, Device{copy.device}, copy.flags == GMM_EVENT_SHARED, out);
  });
}

gmm_result gmm_event_destroy(gmm_event *event) noexcept {
  return destroy(event, [&] { return event->destroy(); });
}

gmm_result gmm_event_record(gmm_event *event, uint64_t value, gmm_stream stream) noexcept {
  return call(event, [&] { return event->record(value, stream); });
}

gmm_result gmm_stream_wait_event(gmm_context *context, gmm_stream stream, gmm_event *event, uint64_t value) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_handle(event));
    if (event->context != context)
      return fail(GMM_ERROR_INVALID_HANDLE,
                  "gmm_stream_wait_event: %p is an event of another context; pass one of this.",
                  static_cast<const void *>(event));
    return event->wait_on(stream, value);
  });
}

gmm_result gmm_event_synchronize(gmm_event *event, uint64_t value, uint64_t timeout_ms) noexcept {
  return call(event, [&] { return event->synchronize(value, timeout_ms); });
}

gmm_result gmm_event_query(gmm_event *event, uint64_t *out) noexcept {
  return call(event, [&]() -> Status {
    bool passed = false;
    GMM_TRY(check_not_null(out, "gmm_event_query", "out"));
    GMM_TRY(event->query(&passed));
    *out = passed ? 1 : 0;
    return Status();
  });
}

gmm_result gmm_event_export(gmm_event *event, gmm_ipc_handle *out) noexcept {
  return call(event, [&]() -> Status {
    GMM_TRY(check_not_null(out, "gmm_event_export", "out"));
    return event->export_to(out);
  });
}

gmm_result gmm_event_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                            gmm_event **out) noexcept {
  return make(context, "gmm_event_import", out, [&]() -> Status {
    gmm_ipc_import_desc copy;
    GMM_TRY(check_not_null(handle, "gmm_event_import", "handle"));
    GMM_TRY(read_import(*context, desc, &copy));
    return gmm_event::import(*context, *handle, Device{copy.device}, copy.timeout_ms, out);
  });
}

gmm_result gmm_event_import_semaphore(gmm_context *context, const gmm_semaphore_desc *desc, gmm_event **out) noexcept {
  return make(context, "gmm_event_import_semaphore", out, [&]() -> Status {
    gmm_semaphore_desc copy;
    GMM_TRY(check_not_null(desc, "gmm_event_import_semaphore", "desc"));
    GMM_TRY(read_descriptor(desc, &copy));
    if (copy.type < GMM_SEMAPHORE_BINARY_FD || copy.type > GMM_SEMAPHORE_CALLS)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_semaphore_desc.type = %u; pass a GMM_SEMAPHORE_* type.", copy.type);
    GMM_TRY(check_device(*context, copy.device));
    return gmm_event::import_semaphore(*context, copy, out);
  });
}
