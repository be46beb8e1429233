// SPDX-License-Identifier: Apache-2.0
#include "engine/range/residency.h"

#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_advise(gmm_context *context, void *memory, uint64_t size, gmm_advice advice,
                      gmm_device location) noexcept {
  return call(context, [&]() -> Status {
    if (advice < GMM_ADVISE_SET_READ_MOSTLY || advice > GMM_ADVISE_UNSET_ACCESSED_BY)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_advise: advice = %u is no GMM_ADVISE_* value; pass one.", advice);
    const bool located = advice > GMM_ADVISE_UNSET_READ_MOSTLY;
    if (located) GMM_TRY(check_location(*context, location));
    return advise(context->core(), memory, size, advice, located ? Device{location} : Device{0});
  });
}

gmm_result gmm_prefetch(gmm_context *context, void *memory, uint64_t size, gmm_device location,
                        gmm_stream stream) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_location(*context, location));
    return prefetch(context->core(), memory, size, Device{location}, stream);
  });
}

gmm_result gmm_move(gmm_context *context, void *memory, gmm_device location, const gmm_move_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    gmm_move_desc copy;
    GMM_TRY(read_checked(desc, GMM_MOVE_NON_BLOCKING, &copy));
    GMM_TRY(check_move_location(*context, location));
    GMM_TRY(Watchers::check_no_operation("gmm_move"));
    return context->move(memory, Device{location}, copy.flags, copy.stream);
  });
}
