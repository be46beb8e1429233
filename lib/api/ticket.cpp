// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "api/pause_arguments.h"

using namespace gmm;

namespace {

Status start(gmm_context *context, const gmm_pause_desc *desc, bool is_pause, gmm_ticket **out) {
  PauseRequest request;
  GMM_TRY(read_pause(context, desc, is_pause ? kPauseFlags : uint32_t{GMM_RESUME_RETAIN}, &request));
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
  info.done = ticket->done.load(std::memory_order_acquire);
  info.result = info.done != 0 ? ticket->code : GMM_ERROR_NOT_READY;
  info.bytes = info.done != 0 ? ticket->bytes : 0;
  info.copied_bytes = ticket->state.copied.load(std::memory_order_relaxed);
  info.total_bytes = ticket->state.total.load(std::memory_order_relaxed);
  fill_output(info, size, out);
  return GMM_OK;
}

gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) noexcept {
  Status status = gmm_ticket::check(ticket);
  if (status.ok() && ticket->is_of_lease()) status = gmm_lease::check_other_thread("gmm_ticket_wait");
  if (!status.ok()) return result_of(status);
  if (!ticket->wait(timeout_ms))
    return result_of(fail(GMM_ERROR_NOT_READY,
                          "gmm_ticket_wait(): the operation has not finished in %llu ms; wait again or cancel it.",
                          static_cast<unsigned long long>(timeout_ms)));
  status = ticket->result();
  if (status.ok() && bytes != nullptr) *bytes = ticket->bytes;
  return result_of(status);
}

gmm_result gmm_ticket_cancel(gmm_ticket *ticket) noexcept {
  const Status status = gmm_ticket::check(ticket);
  if (status.ok()) ticket->state.cancelled.store(1, std::memory_order_relaxed);
  return result_of(status);
}

gmm_result gmm_ticket_destroy(gmm_ticket *ticket) noexcept {
  if (ticket == nullptr) return GMM_OK;
  Status status = gmm_ticket::check(ticket);
  if (status.ok()) status = Watchers::check_other_thread("gmm_ticket_destroy");
  if (status.ok() && ticket->is_of_lease()) status = gmm_lease::check_other_thread("gmm_ticket_destroy");
  if (status.ok()) gmm_ticket::destroy(ticket);
  return result_of(status);
}
