// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of pause and resume.
#ifndef GMM_TESTS_PAUSE_SUPPORT_H
#define GMM_TESTS_PAUSE_SUPPORT_H

#include "../support/gmm_test.h"

#define BLOCKS 40
static void *blocks[BLOCKS];
static uint64_t block_size(unsigned i) {
  return i < 30 ? 100 + i * 3000 : i < 36 ? 100000 + i * 50000 : 3000000 + i * 100001;
}
__attribute__((unused)) static void allocate_blocks(gmm_tag tag, uint32_t seed) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    blocks[i] = FILLED_TAG(block_size(i), tag, seed + i);
  }
}
__attribute__((unused)) static void check_blocks(uint32_t seed) {
  for (unsigned i = 0; i < BLOCKS; ++i)
    if (blocks[i] != NULL) CHECK_PATTERN(blocks[i], block_size(i), seed + i);
}
__attribute__((unused)) static void free_blocks(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
    blocks[i] = NULL;
  }
}

#endif
