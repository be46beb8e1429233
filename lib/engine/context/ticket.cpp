// SPDX-License-Identifier: Apache-2.0
#include "engine/context/ticket.h"

#include <cinttypes>
#include <cstdio>

using namespace gmm;

Status gmm_ticket::carry_out() {
  if (lease != nullptr) return lease->request(amounts, timeout_ms, &state, &bytes);
  return is_pause ? context.pause(request, &bytes) : context.resume(request, &bytes);
}

void gmm_ticket::run() {
  const Status status = carry_out();
  if (status.code() != GMM_OK) std::snprintf(message, sizeof message, "%s", last_message());
  if (!status.ok()) native = last_native();
  code = status.code();
  state.end();
}

Status gmm_ticket::start(Context &context, const PauseRequest &request, bool is_pause, gmm_ticket **out) {
  gmm_ticket *ticket = context.core().allocator.create<gmm_ticket>(context, is_pause);
  if (ticket == nullptr || !ticket->tags.reserve(request.count) || !ticket->ranges.reserve(request.range_count)) {
    context.core().allocator.destroy(ticket);
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a ticket.");
  }
  for (uint32_t i = 0; i < request.count; ++i) ticket->tags.push_back_reserved(request.tags[i]);
  ticket->request = request;
  for (uint32_t i = 0; i < request.range_count; ++i) ticket->ranges.push_back_reserved(request.ranges[i]);
  ticket->request.tags = ticket->tags.data();
  ticket->request.ranges = ticket->ranges.data();
  ticket->request.ticket = &ticket->state;
  ticket->request.caller = context.core().caller();
  return start_thread_of(ticket, "a pause or resume", out);
}

Status gmm_ticket::start(gmm_lease &lease, const LeaseAmounts &amounts, uint64_t timeout_ms, gmm_ticket **out) {
  gmm_ticket *ticket = lease.context.core().allocator.create<gmm_ticket>(lease.context, false);
  if (ticket == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a ticket.");
  ticket->lease = &lease;
  ticket->amounts = amounts;
  ticket->timeout_ms = timeout_ms;
  ++lease.tickets;
  const Status status = start_thread_of(ticket, "a request of a lease", out);
  if (!status.ok()) --lease.tickets;
  return status;
}

Status gmm_ticket::start_thread_of(gmm_ticket *ticket, const char *what, gmm_ticket **out) {
  Context &context = ticket->context;
  const int error =
      start_thread(&ticket->thread, ThreadSignals::kNone, thread_entry<gmm_ticket, &gmm_ticket::run>, ticket);
  if (error != 0) {
    context.core().allocator.destroy(ticket);
    return fail_native(GMM_ERROR_SYSTEM, error, "No thread could be had for %s in the background.", what);
  }
  context.retain();
  *out = ticket;
  return Status();
}

Status gmm_ticket::result() const { return code == GMM_OK ? Status() : fail_native(code, native, "%s", message); }

Status gmm_ticket::wait(gmm_ticket_state until, uint64_t timeout_ms, const char *function) {
  if (lease != nullptr) GMM_TRY(gmm_lease::check_other_thread(function));
  if (!state.wait(timeout_ms, until == GMM_TICKET_HELD))
    return fail(GMM_ERROR_NOT_READY,
                "%s(): the operation is not %s after %" PRIu64
                " ms; wait again or cancel it. One that is held waits for gmm_ticket_commit().",
                function, until == GMM_TICKET_HELD ? "held" : "done", timeout_ms);
  return state.now() == GMM_TICKET_DONE ? result() : Status();
}

Status gmm_ticket::commit() {
  const bool was_committed = state.is_committed();
  if (state.commit()) return was_committed ? unchanged("gmm_ticket_commit(): it was committed before.") : Status();
  if (state.now() == GMM_TICKET_DONE && code < 0) return result();
  return fail(GMM_ERROR_NOT_READY, "gmm_ticket_commit(): the operation is not held: %s",
              !request.holds() ? "it began without GMM_PAUSE_HOLD."
              : state.now() == GMM_TICKET_RUNNING
                  ? "it still prepares, or is undone; call gmm_ticket_wait_held() first."
                  : "it has ended.");
}

void gmm_ticket::destroy(gmm_ticket *ticket) {
  if (ticket->request.holds()) ticket->state.cancel();  // nobody can commit it any more
  join_thread(ticket->thread);
  ticket->magic = 0;
  if (ticket->lease != nullptr) --ticket->lease->tickets;
  Context &context = ticket->context;
  context.core().allocator.destroy(ticket);
  context.release();
}
