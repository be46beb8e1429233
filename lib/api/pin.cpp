// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_pin(gmm_context *context, void *memory, uint64_t size, const gmm_pin_desc *desc,
                   void **device_pointer) noexcept {
  return make(context, nullptr, device_pointer, [&]() -> Status {
    gmm_pin_desc copy;
    GMM_TRY(check_not_null(memory, "gmm_pin", "memory"));
    if (size == 0) return fail(GMM_ERROR_INVALID_SIZE, "gmm_pin(%p): size = 0; pin at least 1 byte.", memory);
    GMM_TRY(read_checked(desc, GMM_PIN_READ_ONLY, &copy));
    GMM_TRY(check_device(*context, copy.device));
    return context->pins().pin(memory, size, copy.flags, Device{copy.device}, device_pointer);
  });
}

gmm_result gmm_unpin(gmm_context *context, void *memory) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_not_null(memory, "gmm_unpin", "memory"));
    return context->pins().unpin(memory);
  });
}
