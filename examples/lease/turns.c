/* SPDX-License-Identifier: Apache-2.0 */
/* One of the processes that use a GPU by turns: ./turns NAME MIB. Start several with more MIB than the GPU has. */
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>

static void must(gmm_result result) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s\n", gmm_result_name(result), gmm_last_error_message());
  exit(1);
}

int main(int count, char **words) {
  gmm_context *context = NULL;
  gmm_lease *lease = NULL;
  gmm_tag tag = 0;
  void *weights = NULL;
  const gmm_tag_desc keep = {.struct_size = sizeof keep, .contents = GMM_CONTENTS_HOST};
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = count > 1 ? words[1] : "turns"};
  must(gmm_context_create(NULL, &context));
  must(gmm_tag_create(context, "weights", &keep, &tag));
  must(gmm_lease_create(context, &desc, &lease));
  must(gmm_lease_offer(lease, tag, 1));
  const gmm_lease_amount amount = {.bytes = (uint64_t)(count > 2 ? atoi(words[2]) : 40) << 20};
  const gmm_lease_request_desc first = {.struct_size = sizeof first, .amounts = &amount, .amount_count = 1};
  const gmm_alloc_desc vmm = {.struct_size = sizeof vmm, .kind = GMM_KIND_VMM, .tag = tag};
  must(gmm_lease_request(lease, &first, NULL)); /* waits for the bytes that the first turn allocates */
  must(gmm_alloc(context, amount.bytes, &vmm, &weights));
  must(gmm_lease_return(lease));
  for (int step = 0; step < 3; ++step) {
    must(gmm_lease_request(lease, NULL, NULL)); /* the weights are back, with their contents */
    printf("%s: step %d\n", desc.name, step);
    must(gmm_lease_return(lease)); /* others may have the memory */
  }
  must(gmm_lease_destroy(lease));
  must(gmm_free(context, weights, GMM_STREAM_DEFAULT));
  must(gmm_context_release(context));
  return 0;
}
