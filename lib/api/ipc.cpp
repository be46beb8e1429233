// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_ipc_export(gmm_context *context, const void *memory, gmm_ipc_handle *out) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(memory, "gmm_ipc_export", "memory");
  if (status.ok()) status = check_not_null(out, "gmm_ipc_export", "out");
  if (status.ok()) status = context->sharing.export_block(memory, out);
  return result_of(status);
}

gmm_result gmm_ipc_import(gmm_context *context, const gmm_ipc_handle *handle, const gmm_ipc_import_desc *desc,
                          void **out) noexcept {
  constexpr uint32_t kDefaultTimeout = 5000;
  gmm_ipc_import_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(handle, "gmm_ipc_import", "handle");
  if (status.ok()) status = check_not_null(out, "gmm_ipc_import", "out");
  if (status.ok()) status = read_descriptor(desc, "gmm_ipc_import_desc", &copy);
  if (status.ok()) status = check_flags(copy.flags, 0, "gmm_ipc_import_desc.flags");
  if (status.ok()) status = check_device(*context, copy.device);
  if (status.ok())
    status = context->sharing.import_block(*handle, Device{copy.device},
                                           copy.timeout_ms == 0 ? kDefaultTimeout : copy.timeout_ms, out);
  return result_of(status);
}

gmm_result gmm_ipc_close(gmm_context *context, void *memory) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(memory, "gmm_ipc_close", "memory");
  if (status.ok()) status = context->sharing.close(memory);
  return result_of(status);
}

gmm_result gmm_ipc_export_fd(gmm_context *context, const void *memory, int32_t *fd, uint64_t *offset,
                             uint64_t *size) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(memory, "gmm_ipc_export_fd", "memory");
  if (status.ok()) status = check_not_null(fd, "gmm_ipc_export_fd", "fd");
  if (status.ok()) status = context->sharing.export_fd(memory, fd, offset, size);
  return result_of(status);
}
