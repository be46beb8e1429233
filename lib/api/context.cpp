// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_context_create(const gmm_context_desc *desc, gmm_context **out) noexcept {
  gmm_context_desc copy;
  const auto create = [&]() -> Status {
    GMM_TRY(check_not_null(out, "gmm_context_create", "out"));
    constexpr uint32_t kFlags =
        GMM_CONTEXT_NO_CAPTURE | GMM_CONTEXT_NO_LEAK_REPORT | GMM_CONTEXT_STRICT_HOST | GMM_CONTEXT_CONTROL;
    GMM_TRY(read_checked(desc, kFlags, &copy));
    if (copy.host_devices > kMaxDevices)
      return fail(GMM_ERROR_INVALID_VALUE,
                  "gmm_context_desc.host_devices = %u: the host backend shows at most %u; request fewer.",
                  copy.host_devices, kMaxDevices);
    if ((copy.host_allocator.allocate == nullptr) != (copy.host_allocator.deallocate == nullptr))
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_context_desc.host_allocator has one function; set both or none.");
    Context *made = nullptr;
    GMM_TRY(Context::create(copy, &made));
    *out = static_cast<gmm_context *>(made);
    return Status();
  };
  return result_of(create(), out);
}

gmm_result gmm_context_retain(gmm_context *context) noexcept {
  return call(context, [&] { context->retain(); });
}

gmm_result gmm_context_release(gmm_context *context) noexcept {
  return destroy(context, [&]() -> Status {
    GMM_TRY(Watchers::check_outside("gmm_context_release"));
    context->release();
    return Status();
  });
}

gmm_result gmm_context_query(gmm_context *context, gmm_context_info *out) noexcept {
  return answer(context, out, [&](gmm_context_info *info) { context->query(info); });
}

gmm_result gmm_context_set_decommit(gmm_context *context, uint64_t milliseconds) noexcept {
  return call(context, [&] { return context->set_decommit(milliseconds); });
}

gmm_result gmm_device_query(gmm_context *context, gmm_device device, gmm_device_info *out) noexcept {
  return answer(context, out, [&](gmm_device_info *info) -> Status {
    GMM_TRY(check_device(*context, device));
    return context->query_device(Device{device}, info);
  });
}
