// SPDX-License-Identifier: Apache-2.0
// GMM_DEBUG: mistakes with blocks are found from what gmm says.
#include "../support/gmm_test.h"

static char said[4096];
static void note(void *user, uint32_t level, const char *message) {
  (void)user;
  if (level <= 2) snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", message);
}

// The case's context anew, under these words, where the processor reaches the memory.
static void debug(const char *words) {
  if (CHECK_SANITIZED) SKIP("a sanitizer reports the planted mistakes itself");
  if (!on_host_backend() && kind != GMM_KIND_HOST) SKIP("the processor does not reach the memory");
  OK(gmm_context_release(context));
  setenv("GMM_DEBUG", words, 1);
  said[0] = '\0';
  context = OPEN(.host_devices = 2, .log = {note, NULL});
  unsetenv("GMM_DEBUG");
}

CASE_OF_KINDS(an_overrun_is_found_at_the_free, ALL_KINDS) {
  debug("redzone");
  static const uint64_t sizes[] = {1, 256, 1000, 5 * MIB};
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    unsigned char *block = ALLOC_TAG(sizes[i], make_tag("layer", GMM_CONTENTS_HOST));
    memset(block, 7, sizes[i]);
    CHECK_EQUAL(query(block).size, sizes[i]);
    OK(gmm_name(context, block, "weights"));
    block[sizes[i] + 3] ^= 7;
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_CORRUPT);
    char words[64];
    snprintf(words, sizeof words, "byte %llu is the first wrong one", (unsigned long long)sizes[i] + 3);
    CHECK(message_has(words) && message_has("weights") && message_has("\"layer\"") && strstr(said, words) != NULL);
    CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
    block[sizes[i] + 3] ^= 7;
    FREE(block);
  }
}

CASE_OF_KINDS(work_of_a_stream_damages_no_red_zone, ALL_KINDS) {
  debug("redzone,poison");
  const gmm_stream stream = open_stream();
  gate held;
  gate_close(&held, stream, GATE_S);
  void *first = ALLOC_STREAM(1000, stream);
  OK(gmm_fill(context, first, 1, 1000, stream));
  FREE_ON(stream, first);
  void *second = ALLOC_STREAM(970, stream);
  CHECK(second == first);
  held.open = 1;
  OK(gmm_stream_synchronize(context, stream));
  FREE_ON(stream, second);
}

CASE_OF_KINDS(a_write_after_the_free_is_found, ALL_KINDS) {
  debug("poison,quarantine");
  unsigned char *block = ALLOC_TAG(1000, make_tag("cache", GMM_CONTENTS_HOST));
  FREE(block);
  CHECK(block[0] == 0xdb && block[999] == 0xdb);
  block[5] = 1;
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK(strstr(said, "wrote to a block after its free: byte 5 of ") != NULL && strstr(said, "\"cache\"") != NULL);
}

CASE_OF_KINDS(a_block_in_quarantine_cannot_be_freed_again, ALL_KINDS) {
  debug("quarantine");
  void *block = ALLOC(1000), *again = NULL;
  FREE(block);
  for (unsigned i = 0; i < 100; ++i) {
    CHECK((again = ALLOC(1000)) != block);
    FREE(again);
  }
  RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
  CHECK_EQUAL(stats().live_blocks, 0);
  // It never makes memory short, and holds 64 MiB at most.
  set_limit(GMM_SCOPE_DEVICE, 0, 40 * MIB);
  for (unsigned i = 0; i < 10; ++i) FREE(ALLOC(30 * MIB));
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
  for (unsigned i = 0; i < 20; ++i) FREE(ALLOC(10 * MIB));
  CHECK(stats().reserved_bytes <= 90 * MIB);
  NOTHING_STAYS();
}

VMM_CASE(a_pause_keeps_the_checks) {
  debug("redzone,poison,quarantine");
  static const gmm_contents contents[] = {GMM_CONTENTS_HOST, GMM_CONTENTS_DROP};
  for (unsigned i = 0; i < 2; ++i) {
    const gmm_tag tag = make_tag(i == 0 ? "kept" : "dropped", contents[i]);
    void *blocks[] = {ALLOC_TAG(1000, tag), ALLOC_TAG(3 * MIB, tag), ALLOC_TAG(1000, tag)};
    FREE(ALLOC_TAG(1000, tag));
    OK(pause_of(tag));
    RESULT(gmm_fill(context, blocks[0], 0, 10, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
    CHECK(message_has(i == 0 ? "\"kept\"" : "\"dropped\""));
    FREE(blocks[1]);
    OK(resume_of(tag));
    FREE(blocks[0], blocks[2]);
  }
  FREE(ALLOC(1000));
  OK(gmm_reset(context));
  CHECK(said[0] == '\0');
}

int main(void) { return run_cases(); }
