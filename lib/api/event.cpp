// SPDX-License-Identifier: Apache-2.0
#include "engine/context/event.h"

#include "api/arguments.h"

using namespace gmm;

namespace {

Status check_event(const gmm_event *event) {
  GMM_TRY(check_handle(event, "gmm_event", "event"));
  return Context::check(event->context);
}

}  // namespace

gmm_result gmm_event_create(gmm_context *context, const gmm_event_desc *desc, gmm_event **out) noexcept {
  const auto create = [&]() -> Status {
    gmm_event_desc copy;
    GMM_TRY(Context::check(context));
    GMM_TRY(check_not_null(out, "gmm_event_create", "out"));
    GMM_TRY(read_descriptor(desc, &copy));
    GMM_TRY(check_flags(copy.flags, GMM_EVENT_SHARED, "gmm_event_desc.flags"));
    GMM_TRY(check_zero(copy.reserved, "gmm_event_desc.reserved"));
    GMM_TRY(check_device(*context, copy.device));
    return gmm_event::create(*context, Device{copy.device}, copy.flags == GMM_EVENT_SHARED, out);
  };
  return result_of(create(), out);
}

gmm_result gmm_event_destroy(gmm_event *event) noexcept {
  if (event == nullptr) return GMM_OK;
  Status status = check_event(event);
  if (status.ok()) status = event->destroy();
  return result_of(status);
}

gmm_result gmm_event_record(gmm_event *event, uint64_t value, gmm_stream stream) noexcept {
  Status status = check_event(event);
  if (status.ok()) status = event->record(value, stream);
  return result_of(status);
}

gmm_result gmm_stream_wait_event(gmm_context *context, gmm_stream stream, gmm_event *event, uint64_t value) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_event(event);
  if (status.ok() && event->context != context)
    status =
        fail(GMM_ERROR_INVALID_HANDLE, "gmm_stream_wait_event: %p is an event of another context; pass one of this.",
             static_cast<const void *>(event));
  if (status.ok()) status = event->wait_on(stream, value);
  return result_of(status);
}

gmm_result gmm_event_synchronize(gmm_event *event, uint64_t value, uint64_t timeout_ms) noexcept {
  Status status = check_event(event);
  if (status.ok()) status = event->synchronize(value, timeout_ms);
  return result_of(status);
}

gmm_result gmm_event_query(gmm_event *event, uint64_t *out) noexcept {
  bool passed = false;
  Status status = check_event(event);
  if (status.ok()) status = check_not_null(out, "gmm_event_query", "out");
  if (status.ok()) status = event->query(&passed);
  if (status.ok()) *out = passed ? 1 : 0;
  return result_of(status);
}

gmm_result gmm_event_export(gmm_event *event, gmm_ipc_handle *out) noexcept {
  Status status = check_event(event);
  if (status.ok()) status = check_not_null(out, "gmm_event_export", "out");
  if (status.ok()) status = event->export_to(out);
  return result_of(status);
}

gmm_result gmm_event_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                            gmm_event **out) noexcept {
  gmm_ipc_import_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(handle, "gmm_event_import", "handle");
  if (status.ok()) status = check_not_null(out, "gmm_event_import", "out");
  if (status.ok()) status = read_import(*context, desc, &copy);
  if (status.ok()) status = gmm_event::import(*context, *handle, Device{copy.device}, copy.timeout_ms, out);
  return result_of(status, out);
}

gmm_result gmm_event_import_semaphore(gmm_context *context, const gmm_semaphore_desc *desc, gmm_event **out) noexcept {
  const auto import = [&]() -> Status {
    gmm_semaphore_desc copy;
    GMM_TRY(Context::check(context));
    GMM_TRY(check_not_null(desc, "gmm_event_import_semaphore", "desc"));
    GMM_TRY(check_not_null(out, "gmm_event_import_semaphore", "out"));
    GMM_TRY(read_descriptor(desc, &copy));
    if (copy.type < GMM_SEMAPHORE_BINARY_FD || copy.type > GMM_SEMAPHORE_CALLS)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_semaphore_desc.type = %u; pass a GMM_SEMAPHORE_* type.", copy.type);
    GMM_TRY(check_device(*context, copy.device));
    return gmm_event::import_semaphore(*context, copy, out);
  };
  return result_of(import(), out);
}
