// SPDX-License-Identifier: Apache-2.0
#include <cinttypes>

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
  uint32_t size = 0;
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = check_output(out, &size);
  if (!status.ok()) return result_of(status);
  gmm_ticket_info info = {};
  info.state = ticket->state.now();
  const bool has_ended = info.state == GMM_TICKET_DONE;
  info.result = has_ended ? ticket->code : GMM_ERROR_NOT_READY;
  info.bytes = has_ended ? ticket->bytes : 0;
  info.copied_bytes = ticket->state.copied.load(std::memory_order_relaxed);
  info.total_bytes = ticket->state.total.load(std::memory_order_relaxed);
  fill_output(info, size, out);
  return GMM_OK;
}

gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok() && ticket->is_of_lease()) status = gmm_lease::check_other_thread("gmm_ticket_wait");
  if (!status.ok()) return result_of(status);
  if (!ticket->state.wait(timeout_ms, false))
    return result_of(fail(GMM_ERROR_NOT_READY,
                          "gmm_ticket_wait(): the operation has not ended in %" PRIu64
                          " ms; wait again or cancel it. One that is held waits for gmm_ticket_commit().",
                          timeout_ms));
  status = ticket->result();
  if (status.ok() && bytes != nullptr) *bytes = ticket->bytes;
  return result_of(status);
}

gmm_result gmm_ticket_wait_held(gmm_ticket *ticket, uint64_t timeout_ms) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok() && ticket->is_of_lease()) status = gmm_lease::check_other_thread("gmm_ticket_wait_held");
  if (!status.ok()) return result_of(status);
  if (!ticket->state.wait(timeout_ms, true))
    return result_of(fail(GMM_ERROR_NOT_READY,
                          "gmm_ticket_wait_held(): the operation is not held after %" PRIu64
                          " ms; wait again or cancel it.",
                          timeout_ms));
  return result_of(ticket->state.now() == GMM_TICKET_DONE ? ticket->result() : Status());
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
