/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, for the languages whose layer is made by SWIG. A language's own file includes this behind gmm.i. It supplies
 * a trampoline and a typemap for
 *   (gmm_lease_ask_fn fn, void *user)
 * and applies its typemaps of handles to gmm_lease *.
 */
%include "owner.i"
%constant uint32_t GMM_LEASE_WITHDRAW = 4294967295u;
%apply SWIGTYPE **GMM_OUT_HANDLE { gmm_lease **out, gmm_ticket **ticket }
%ignore gmm_lease;
%ignore gmm_lease_amount;
/* The trampoline passes its fields. */
%ignore gmm_lease_ask;
%ignore gmm_lease_ask_callback;


GMM_OWNER(gmm_lease_desc, free((void *)$self->name);)
GMM_OWNED_TEXT(gmm_lease_desc, name)
%ignore gmm_lease_desc::asked;
%extend gmm_lease_desc {
  void set_asked(gmm_lease_ask_fn fn, void *user) {
    $self->asked.fn = fn;
    $self->asked.user = user;
  }
}

/* add_amount() fills the list of amounts. */
GMM_OWNER(gmm_lease_request_desc, free((void *)$self->amounts);)
%ignore gmm_lease_request_desc::amounts;
%immutable gmm_lease_request_desc::amount_count;
%extend gmm_lease_request_desc {
  gmm_result add_amount(gmm_device device, uint64_t size) {
    const uint32_t count = $self->amount_count;
    gmm_lease_amount *grown = (gmm_lease_amount *)realloc((void *)$self->amounts, (count + 1) * sizeof *grown);
    if (!grown) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    grown[count] = (gmm_lease_amount){.device = device, .bytes = size};
    $self->amounts = grown;
    $self->amount_count = count + 1;
    return GMM_OK;
  }
}

%{
#include <unistd.h>

/* gmm_lease_offer() that waits, up to a minute, while gmm pauses or resumes for the lease. */
static gmm_result gmm_lease_offer_wait(gmm_lease *lease, gmm_tag tag, uint32_t cost) {
  for (int tries = 0;; ++tries) {
    const gmm_result result = gmm_lease_offer(lease, tag, cost);
    if (result != GMM_ERROR_BUSY || tries == 30000) return result;
    usleep(2000);
  }
}

/* gmm_ticket_wait() that keeps apart an operation that has not ended, which sets *out to 0, and one that ended with
 * NOT_READY, as a request of a lease may. */
static gmm_result gmm_ticket_look(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes, uint32_t *out) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_ticket_wait(ticket, timeout_ms, bytes);
  *out = 1;
  if (result != GMM_ERROR_NOT_READY) return result;
  const gmm_result asked = gmm_ticket_query(ticket, &info);
  if (asked < 0) return asked;
  *out = info.state == GMM_TICKET_DONE;
  return *out ? gmm_ticket_wait(ticket, 0, bytes) : GMM_OK;
}
%}
/* Their end is their result, so NOT_READY is an exception. */
%apply gmm_result GMM_END { gmm_result gmm_lease_list, gmm_result gmm_ticket_look }
gmm_result gmm_lease_offer_wait(gmm_lease *lease, gmm_tag tag, uint32_t cost);
gmm_result gmm_ticket_look(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes, uint32_t *out);

%include <gmm/lease.h>
