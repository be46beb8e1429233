// SPDX-License-Identifier: Apache-2.0
#include "engine/range/residency.h"

#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_advise(gmm_context *context, void *memory, uint64_t size, gmm_advice advice,
                      gmm_device location) noexcept {
  Status status = Context::check(context);
  if (status.ok() && (advice < GMM_ADVISE_SET_READ_MOSTLY || advice > GMM_ADVISE_UNSET_ACCESSED_BY))
    status = fail(GMM_ERROR_INVALID_VALUE, "gmm_advise: advice = %u is no GMM_ADVISE_* value; pass one.", advice);
  const bool located = advice > GMM_ADVISE_UNSET_READ_MOSTLY;
  if (status.ok() && located) status = check_location(*context, location);
  if (status.ok()) status = advise(context->core(), memory, size, advice, located ? Device{location} : Device{0});
  return result_of(status);
}

gmm_result gmm_prefetch(gmm_context *context, void *memory, uint64_t size, gmm_device location,
                        gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_location(*context, location);
  if (status.ok()) status = prefetch(context->core(), memory, size, Device{location}, stream);
  return result_of(status);
}

gmm_result gmm_move(gmm_context *context, void *memory, gmm_device location, const gmm_move_desc *desc) noexcept {
  gmm_move_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = read_descriptor(desc, &copy);
  if (status.ok()) status = check_flags(copy.flags, GMM_MOVE_NON_BLOCKING, "gmm_move_desc.flags");
  if (status.ok()) status = check_move_location(*context, location);
  if (status.ok()) status = Watchers::check_no_operation("gmm_move");
  if (status.ok()) status = context->move(memory, Device{location}, copy.flags, copy.stream);
  return result_of(status);
}
