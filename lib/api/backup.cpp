// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "api/pause_arguments.h"

using namespace gmm;

gmm_result gmm_backup_configure(gmm_context *context, const gmm_backup_desc *desc) noexcept {
  gmm_backup_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = read_descriptor(desc, &copy);
  if (status.ok())
    status = check_flags(copy.flags, GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE | GMM_BACKUP_NAMED_FILES,
                         "gmm_backup_desc.flags");
  if (status.ok()) status = check_zero(copy.reserved, "gmm_backup_desc.reserved");
  if (status.ok()) status = context->backups().configure(copy);
  return result_of(status);
}

gmm_result gmm_backup_reserve(gmm_context *context, gmm_device device, uint64_t bytes) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_device(*context, device);
  if (status.ok()) status = context->backups().prepare(Device{device}, bytes);
  return result_of(status);
}

gmm_result gmm_backup_query(gmm_context *context, gmm_backup_info *out) noexcept {
  return answer(Context::check(context), out, [&](gmm_backup_info *info) {
    context->backups().query(info);
    return Status();
  });
}

gmm_result gmm_backup_read(gmm_context *context, const void *address, uint64_t size, void *out) noexcept {
  Status status = check_range_of(context, address, size, "gmm_backup_read");
  if (status.ok()) status = check_not_null(out, "gmm_backup_read", "out");
  if (status.ok()) status = context->pauser().read(address, size, out);
  return result_of(status);
}

gmm_result gmm_backup_map(gmm_context *context, const void *address, uint64_t size, const void **out) noexcept {
  Status status = check_range_of(context, address, size, "gmm_backup_map");
  if (status.ok()) status = check_not_null(out, "gmm_backup_map", "out");
  if (status.ok()) status = context->pauser().map(address, size, out);
  return result_of(status, out);
}

gmm_result gmm_backup_discard(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  PauseRequest request;
  uint64_t discarded = 0;
  Status status = read_pause(context, desc, 0, &request);
  if (status.ok()) status = Watchers::check_no_operation("gmm_backup_discard");
  if (status.ok()) status = context->pauser().discard(request, &discarded);
  if (status.ok() && bytes != nullptr) *bytes = discarded;
  return result_of(status);
}
