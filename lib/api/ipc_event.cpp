// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

namespace {

Status make_event(Context &context, Device device, gmm_event **out) {
  gmm_event *event = context.core.allocator.create<gmm_event>();
  if (event == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for an event; free memory.");
  event->context = &context;
  event->device = device;
  *out = event;
  return Status();
}

}  // namespace

gmm_result gmm_ipc_event_create(gmm_context *context, gmm_device device, gmm_event **out) noexcept {
  gmm_event *event = nullptr;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(out, "gmm_ipc_event_create", "out");
  if (status.ok()) status = check_device(*context, device);
  if (status.ok()) status = make_event(*context, Device{device}, &event);
  if (!status.ok()) return result_of(status);
  status = context->ipc.events.create(event->device, &event->shared);
  if (!status.ok()) {
    context->core.allocator.destroy(event);
    return result_of(status);
  }
  event->native = event->shared->native;
  *out = event;
  return GMM_OK;
}

gmm_result gmm_event_export(gmm_context *context, gmm_event *event, gmm_ipc_handle *out) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_event(context, event);
  if (status.ok()) status = check_not_null(out, "gmm_event_export", "out");
  if (status.ok() && event->shared == nullptr)
    status = fail(GMM_ERROR_INVALID_HANDLE, "gmm_event_export: %s.",
                  event->import != nullptr ? "the event was imported; only the process that made it can export it"
                                           : "the event cannot be shared; make it with gmm_ipc_event_create()");
  if (status.ok()) status = context->ipc.events.export_event(*event->shared, out);
  return result_of(status);
}

gmm_result gmm_event_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                            gmm_event **out) noexcept {
  gmm_ipc_import_desc copy;
  gmm_event *event = nullptr;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(handle, "gmm_event_import", "handle");
  if (status.ok()) status = check_not_null(out, "gmm_event_import", "out");
  if (status.ok()) status = read_import(*context, desc, &copy);
  if (status.ok()) status = make_event(*context, Device{copy.device}, &event);
  if (!status.ok()) return result_of(status);
  status = context->ipc.events.import_event(*handle, event->device, copy.timeout_ms, &event->import, &event->shared);
  if (!status.ok()) {
    context->core.allocator.destroy(event);
    return result_of(status);
  }
  if (event->shared != nullptr) event->device = event->shared->device;
  event->native = event->shared != nullptr ? event->shared->native : event->import->native;
  *out = event;
  return GMM_OK;
}
