// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "api/pause_arguments.h"

using namespace gmm;

namespace {

Status start(gmm_context *context, const gmm_pause_desc *desc, bool is_pause, gmm_ticket **out) {
  PauseRequest request;
  constexpr uint32_t kHoldFlags = GMM_PAUSE_HOLD | GMM_PAUSE_NO_WRITES;
  GMM_TRY(
      read_pause(context, desc, is_pause ? kPauseFlags | kHoldFlags : GMM_RESUME_RETAIN | GMM_PAUSE_HOLD, &request));
  GMM_TRY(check_not_null(out, is_pause ? "gmm_pause_async" : "gmm_resume_async", "out"));
  return gmm_ticket::start(*context, request, is_pause, out);
}

}  // namespace

gmm_result gmm_pause_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) noexcept {
  return result_of(start(context, desc, true, out), out);
}

gmm_result gmm_resume_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) noexcept {
  return result_of(start(context, desc, false, out), out);
}

gmm_result gmm_ticket_query(gmm_ticket *ticket, gmm_ticket_info *out) noexcept {
  return answer(gmm_ticket::check(ticket), out, [&](gmm_ticket_info *info) {
    info->state = ticket->state.now();
    const bool has_ended = info->state == GMM_TICKET_DONE;
    info->result = has_ended ? ticket->code : GMM_ERROR_NOT_READY;
    info->bytes = has_ended ? ticket->bytes : 0;
    info->copied_bytes = ticket->state.copied.load(std::memory_order_relaxed);
    info->total_bytes = ticket->state.total.load(std::memory_order_relaxed);
    return Status();
  });
}

gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = ticket->wait(GMM_TICKET_DONE, timeout_ms, "gmm_ticket_wait");
  if (status.ok() && bytes != nullptr) *bytes = ticket->bytes;
  return result_of(status);
}

gmm_result gmm_ticket_wait_held(gmm_ticket *ticket, uint64_t timeout_ms) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = ticket->wait(GMM_TICKET_HELD, timeout_ms, "gmm_ticket_wait_held");
  return result_of(status);
}

gmm_result gmm_ticket_commit(gmm_ticket *ticket) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = ticket->commit();
  return result_of(status);
}

gmm_result gmm_ticket_cancel(gmm_ticket *ticket) noexcept {
  const Status status = gmm_ticket::check(ticket);
  if (status.ok()) ticket->state.cancel();
  return result_of(status);
}

gmm_result gmm_ticket_destroy(gmm_ticket *ticket) noexcept {
  if (ticket == nullptr) return GMM_OK;
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = Watchers::check_outside("gmm_ticket_destroy");
  if (status.ok() && ticket->is_of_lease()) status = gmm_lease::check_other_thread("gmm_ticket_destroy");
  if (status.ok()) gmm_ticket::destroy(ticket);
  return result_of(status);
}
