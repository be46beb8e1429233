/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that wait for the server: leases and published memory. The wait for a ticket, whose operation may end
 * with NOT_READY for a lease.
 */

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
%apply gmm_result GMM_END { gmm_result gmm_lease_list, gmm_result gmm_ticket_look, gmm_result gmm_publish,
  gmm_result gmm_unpublish, gmm_result gmm_attach, gmm_result gmm_published_list }
gmm_result gmm_lease_offer_wait(gmm_lease *lease, gmm_tag tag, uint32_t cost);
gmm_result gmm_ticket_look(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes, uint32_t *out);

%include <gmm/keep.h>
%include <gmm/lease.h>
