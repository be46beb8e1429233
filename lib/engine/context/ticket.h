// SPDX-License-Identifier: Apache-2.0
// Pauses, resumes and requests of leases that a thread of the library carries out, one thread a ticket.
#ifndef GMM_ENGINE_CONTEXT_TICKET_H
#define GMM_ENGINE_CONTEXT_TICKET_H

#include "base/thread.h"
#include "engine/context/context.h"
#include "engine/context/lease.h"

struct gmm_ticket {
  static constexpr uint64_t kMagic = 0x676d6d2d74696b74;
  static constexpr char kHandleName[] = "ticket";
  gmm_ticket(gmm::Context &of, bool pauses)
      : context(of), tags(of.core().allocator), ranges(of.core().allocator), is_pause(pauses) {}

  // The request is copied. A ticket keeps its context.
  static gmm::Status start(gmm::Context &context, const gmm::PauseRequest &request, bool is_pause, gmm_ticket **out);
  // A request of a lease, which lives as long as the ticket.
  static gmm::Status start(gmm_lease &lease, const gmm::LeaseAmounts &amounts, uint64_t timeout_ms, gmm_ticket **out);
  // Carries out what is held. UNCHANGED: it was committed before. NOT_READY: it is not held. An operation that has
  // failed returns its failure.
  gmm::Status commit();
  // Waits until the operation is done, or also until it is held. NOT_READY: the time passed first. BUSY: the calling
  // thread is that of the ticket's lease. Returns the result of an operation that is done.
  gmm::Status wait(gmm_ticket_state until, uint64_t timeout_ms, const char *function);
  static void destroy(gmm_ticket *ticket);
  bool is_of_lease() const { return lease != nullptr; }

  uint64_t magic = kMagic;
  gmm::Context &context;
  gmm::TicketState state;
  gmm_result code = GMM_ERROR_NOT_READY;  // this and the next three: written before the end
  int32_t native = 0;
  uint64_t bytes = 0;
  char message[512] = {};

 private:
  void run();
  static gmm::Status start_thread_of(gmm_ticket *ticket, const char *what, gmm_ticket **out);
  gmm::Status carry_out();
  // With its message; after the end.
  gmm::Status result() const;
  gmm::Vector<gmm_tag> tags;
  gmm::Vector<gmm::ByteRange> ranges;
  gmm::PauseRequest request;
  const bool is_pause;
  gmm_lease *lease = nullptr;  // of a request
  gmm::LeaseAmounts amounts;
  uint64_t timeout_ms = 0;
  gmm::Thread thread;
};

#endif
