// SPDX-License-Identifier: Apache-2.0
#include "engine/context/lease.h"

#include <gmm/lease.h>

#include "api/arguments.h"
#include "engine/context/ticket.h"

using namespace gmm;

namespace {

Status read_lease(const gmm_lease_desc *desc, gmm_lease_desc *out) {
  GMM_TRY(check_not_null(desc, "gmm_lease_create", "desc"));
  GMM_TRY(read_checked(desc, 0, out));
  GMM_TRY(check_not_null(out->name, "gmm_lease_create", "desc->name"));
  GMM_TRY(check_plain_name(out->name, "gmm_lease_desc.name", "a lease's"));
  if (out->residency_ms <= gmm_lease::kMaxResidency) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "gmm_lease_desc.residency_ms = %" PRIu64 "; pass at most %" PRIu64 ".",
              out->residency_ms, gmm_lease::kMaxResidency);
}

Status read_request(const Context &context, const gmm_lease_request_desc *desc, LeaseAmounts *amounts,
                    uint64_t *timeout_ms) {
  gmm_lease_request_desc copy;
  GMM_TRY(read_checked(desc, 0, &copy));
  if (copy.amount_count != 0) GMM_TRY(check_not_null(copy.amounts, "gmm_lease_request", "desc->amounts"));
  uint64_t named = 0;
  static_assert(kMaxDevices <= 64);
  for (uint32_t i = 0; i < copy.amount_count; ++i) {
    const gmm_lease_amount &amount = copy.amounts[i];
    GMM_TRY(check_device(context, amount.device));
    GMM_TRY(check_reserved(amount.reserved, "gmm_lease_amount"));
    if ((named & uint64_t{1} << amount.device) != 0)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_lease_request_desc.amounts names device %d twice; add the bytes.",
                  amount.device);
    named |= uint64_t{1} << amount.device;
    amounts->bytes[amount.device] = amount.bytes;
  }
  if (copy.timeout_ms > gmm_lease::kMaxTimeout)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_lease_request_desc.timeout_ms = %" PRIu64 "; pass at most %" PRIu64 ".",
                copy.timeout_ms, gmm_lease::kMaxTimeout);
  *timeout_ms = copy.timeout_ms == 0 ? gmm_lease::kDefaultTimeout : copy.timeout_ms;
  return Status();
}

}  // namespace

gmm_result gmm_lease_create(gmm_context *context, const gmm_lease_desc *desc, gmm_lease **out) noexcept {
  return make(context, "gmm_lease_create", out, [&]() -> Status {
    gmm_lease_desc copy;
    GMM_TRY(read_lease(desc, &copy));
    return gmm_lease::create(*context, copy, out);
  });
}

gmm_result gmm_lease_offer(gmm_lease *lease, gmm_tag tag, uint32_t cost) noexcept {
  return call(lease, [&]() -> Status {
    const gmm_tag named = tag == GMM_TAG_CURRENT ? lease->context.tags().current() : tag;
    // A tag that was destroyed may be withdrawn.
    if (cost != GMM_LEASE_WITHDRAW) GMM_TRY(check_tag(lease->context, named));
    return lease->offer(named, cost);
  });
}

gmm_result gmm_lease_request(gmm_lease *lease, const gmm_lease_request_desc *desc, gmm_ticket **ticket) noexcept {
  return make(lease, nullptr, ticket, [&]() -> Status {
    LeaseAmounts amounts;
    uint64_t timeout_ms = 0, bytes = 0;
    GMM_TRY(read_request(lease->context, desc, &amounts, &timeout_ms));
    GMM_TRY(gmm_lease::check_other_thread("gmm_lease_request"));
    GMM_TRY(Watchers::check_outside("gmm_lease_request"));
    return ticket != nullptr ? gmm_ticket::start(*lease, amounts, timeout_ms, ticket)
                             : lease->request(amounts, timeout_ms, nullptr, &bytes);
  });
}

gmm_result gmm_lease_return(gmm_lease *lease) noexcept {
  return call(lease, [&] { return lease->return_all(); });
}

gmm_result gmm_lease_query(gmm_lease *lease, gmm_lease_info *out) noexcept {
  return answer(lease, out, [&](gmm_lease_info *info) { lease->query(info); });
}

gmm_result gmm_lease_destroy(gmm_lease *lease) noexcept {
  return destroy(lease, [&]() -> Status {
    GMM_TRY(gmm_lease::check_other_thread("gmm_lease_destroy"));
    GMM_TRY(Watchers::check_outside("gmm_lease_destroy"));
    return gmm_lease::destroy(lease);
  });
}

gmm_result gmm_lease_list(gmm_context *context, uint64_t index, uint64_t timeout_ms,
                          gmm_lease_entry_info *out) noexcept {
  return answer(context, out,
                [&](gmm_lease_entry_info *info) { return gmm_lease::list(*context, index, timeout_ms, info); });
}
