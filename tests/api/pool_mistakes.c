// SPDX-License-Identifier: Apache-2.0
// Mistakes with memory of gmm's pool, for memory_tools_test.py: pool_mistakes none|overrun|reuse
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) ((call) >= 0 ? (void)0 : (fprintf(stderr, "%s\n", gmm_last_error_message()), abort()))

static gmm_context *context;

static char *allocate_weights(uint64_t size) {
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM};
  void *block = NULL;
  OK(gmm_alloc(context, size, &desc, &block));
  memset(block, 1, size);
  return block;
}

static void work_well(void) {
  gmm_stream stream;
  OK(gmm_stream_create(context, NULL, &stream));
  for (uint64_t size = 1; size < 8 << 20; size = size * 5 + 3) {
    char *kept = allocate_weights(size);
    OK(gmm_free(context, allocate_weights(size), GMM_STREAM_DEFAULT));
    OK(gmm_pause(context, NULL, NULL));
    OK(gmm_resume(context, NULL, NULL));
    char *other = allocate_weights(size);
    memset(kept, other[size - 1], size);
    OK(gmm_copy(context, other, kept, size, stream));
    OK(gmm_free(context, other, stream));  // in the order of the stream, which may not have copied yet
    OK(gmm_trim(context, NULL, NULL));
  }
  OK(gmm_reset(context));
}

int main(int argc, char **argv) {
  const char *mistake = argc > 1 ? argv[1] : "";
  OK(gmm_context_create(&(gmm_context_desc){.struct_size = sizeof(gmm_context_desc)}, &context));
  if (strcmp(mistake, "none") == 0) work_well();
  volatile char *block = allocate_weights(1000);
  if (strcmp(mistake, "overrun") == 0) block[1000] = 1;
  if (strcmp(mistake, "reuse") == 0) {
    OK(gmm_free(context, (void *)block, GMM_STREAM_DEFAULT));
    block[500] = 1;
  }
  OK(gmm_context_release(context));
  return 0;
}
