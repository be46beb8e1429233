// SPDX-License-Identifier: Apache-2.0
// Cached pairs of gmm_alloc() and gmm_free(), for pair_cost_test.py to count instructions.
//
// Usage: pairs plain|null|newer COUNT     the descriptor: this release's, none, or that of a newer release
#include <gmm/gmm.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words) {
  if (count != 3) return 2;
  struct {
    gmm_alloc_desc desc;
    uint64_t later;
  } newer = {.desc = {.struct_size = sizeof(gmm_alloc_desc)}};
  if (strcmp(words[1], "newer") == 0) newer.desc.struct_size = sizeof newer;
  const gmm_alloc_desc *desc = strcmp(words[1], "null") == 0 ? NULL : &newer.desc;
  gmm_context *context = NULL;
  if (gmm_context_create(NULL, &context) != GMM_OK) return 1;
  for (long pairs = atol(words[2]); pairs > 0; --pairs) {
    void *block = NULL;
    if (gmm_alloc(context, 1024, desc, &block) != GMM_OK) return 1;
    if (gmm_free(context, block, GMM_STREAM_DEFAULT) != GMM_OK) return 1;
  }
  return gmm_context_release(context) == GMM_OK ? 0 : 1;
}
