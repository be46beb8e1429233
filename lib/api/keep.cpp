// SPDX-License-Identifier: Apache-2.0
#include <gmm/keep.h>

#include "api/arguments.h"
#include "base/name.h"
#include "engine/ipc/keep_messages.h"

using namespace gmm;

namespace {

constexpr uint64_t kDefaultTimeout = 5000;

Status check_kept_name(const char *function, const char *name) {
  GMM_TRY(check_not_null(name, function, "name"));
  return check_name("The name of published memory", name, kKeptNameSize);
}

}  // namespace

gmm_result gmm_publish(gmm_context *context, const void *memory, const char *name,
                       const gmm_publish_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    gmm_publish_desc copy;
    GMM_TRY(check_not_null(memory, "gmm_publish", "memory"));
    GMM_TRY(check_kept_name("gmm_publish", name));
    GMM_TRY(read_checked(desc, 0, &copy));
    return context->ipc().kept.publish(memory, name, copy.timeout_ms == 0 ? kDefaultTimeout : copy.timeout_ms);
  });
}

gmm_result gmm_unpublish(gmm_context *context, const char *name) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_kept_name("gmm_unpublish", name));
    return context->ipc().kept.unpublish(name, kDefaultTimeout);
  });
}

gmm_result gmm_attach(gmm_context *context, const char *name, const gmm_attach_desc *desc, void **out) noexcept {
  return make(context, "gmm_attach", out, [&]() -> Status {
    gmm_attach_desc copy;
    GMM_TRY(check_kept_name("gmm_attach", name));
    GMM_TRY(read_checked(desc, GMM_ATTACH_READ_ONLY | GMM_ATTACH_SAME_ADDRESS | GMM_ATTACH_OR_CLAIM, &copy));
    if (copy.timeout_ms == 0) copy.timeout_ms = kDefaultTimeout;
    return context->ipc().kept.attach(name, copy, out);
  });
}

gmm_result gmm_detach(gmm_context *context, void *memory) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_not_null(memory, "gmm_detach", "memory"));
    bool found = false;
    const Status status = context->ipc().kept.detach(memory, &found);
    if (found) return status;
    return fail(GMM_ERROR_UNKNOWN_POINTER, "gmm_detach(%p): nothing is attached there; pass memory of gmm_attach().",
                memory);
  });
}

gmm_result gmm_published_list(gmm_context *context, uint64_t index, uint64_t timeout_ms,
                              gmm_published_info *out) noexcept {
  return answer(context, out,
                [&](gmm_published_info *info) { return context->ipc().kept.list(index, timeout_ms, info); });
}
