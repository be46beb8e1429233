// SPDX-License-Identifier: Apache-2.0
// gmm_try_alloc() and gmm_try_free() of memory.h: the same memory and the same counters, or nothing at all.
#include "../support/gmm_test.h"

CASE_OF_KINDS(freed_blocks_come_back, ALL_KINDS) {
  static const uint64_t sizes[] = {1, 100, 5000, 200000, 3 * MIB};
  const gmm_alloc_desc desc = alloc_desc();
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    void *block = ALLOC(sizes[i]), *again = NULL;
    RESULT(gmm_try_free(context, block, GMM_STREAM_DEFAULT), GMM_OK);
    CHECK_EQUAL(stats().live_blocks, 0);
    RESULT(gmm_try_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);  // free() names the mistake
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    RESULT(gmm_try_alloc(context, sizes[i], &desc, &again), GMM_OK);
    CHECK(again == block);
    CHECK_EQUAL(query(again).size, sizes[i]);
    CHECK_EQUAL(stats().live_blocks, 1);
    CHECK_EQUAL(stats().live_bytes, sizes[i]);
    write_pattern(again, sizes[i], i, GMM_STREAM_DEFAULT);
    CHECK_PATTERN(again, sizes[i], i);
    RESULT(gmm_try_free(context, (char *)again + 1, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
    FREE(again);
  }
  const gmm_stats_info s = stats();
  CHECK_EQUAL(s.allocations, s.frees);
}

static void *free_elsewhere(void *block) {
  // A thread without a cache has no place for the block.
  return (void *)(intptr_t)gmm_try_free(context, block, GMM_STREAM_DEFAULT);
}

CASE_OF_KINDS(a_call_that_would_wait_does_nothing, ALL_KINDS) {
  const gmm_alloc_desc desc = alloc_desc();
  void *block = (void *)0x1;
  RESULT(gmm_alloc(context, 0, &desc, &block), GMM_ERROR_INVALID_SIZE);  // a message of its own
  block = (void *)0x1;
  RESULT(gmm_try_alloc(context, 5000, &desc, &block), GMM_ERROR_NOT_READY);  // there is no memory yet
  CHECK(block == NULL);
  CHECK(strcmp(gmm_last_error_message(), gmm_result_text(GMM_ERROR_NOT_READY)) == 0);
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().failures, 0);

  void *kept = ALLOC(5000);
  FREE(ALLOC(5000));
  void *answer = NULL;
  const pthread_t thread = start_thread(free_elsewhere, kept);
  pthread_join(thread, &answer);
  CHECK_EQUAL((intptr_t)answer, GMM_ERROR_NOT_READY);
  CHECK_EQUAL(query(kept).state, GMM_STATE_ACTIVE);

  // A block with a name, which must be forgotten.
  OK(gmm_name(context, kept, "kept"));
  RESULT(gmm_try_free(context, kept, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  CHECK_EQUAL(query(kept).state, GMM_STATE_ACTIVE);

  // Another stream, and what asks for more than there is.
  gmm_stream stream = open_stream();
  RESULT(gmm_try_free(context, kept, stream), GMM_ERROR_NOT_READY);
  OK(gmm_record_use(context, kept, stream));
  RESULT(gmm_try_free(context, kept, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(context, 64 * MIB, HERE(.stream = stream), &block), GMM_ERROR_NOT_READY);  // more than is free
  RESULT(gmm_try_alloc(context, 5000, HERE(.flags = GMM_ALLOC_ZERO), &block), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(context, 5000, HERE(.alignment = 4096), &block), GMM_ERROR_NOT_READY);
  CHECK(block == NULL);
  FREE(kept);

  // While a trace is recorded, in which no call may be missing.
  OK(gmm_trace_begin(context, "/dev/null", NULL));
  RESULT(gmm_try_alloc(context, 5000, &desc, &block), GMM_ERROR_NOT_READY);
  OK(gmm_try_free(context, NULL, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  // The first call behind it may notice that there was one.
  if (gmm_try_alloc(context, 5000, &desc, &block) != GMM_OK) OK(gmm_try_alloc(context, 5000, &desc, &block));
  FREE(block);
}

CASE_OF_KINDS(a_heap_serves_too, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  void *again = (void *)0x1;
  RESULT(gmm_heap_try_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &again), GMM_ERROR_NOT_READY);
  CHECK(again == NULL);
  CHECK_EQUAL(stats().reserved_bytes, 0);
  void *block = take_of(heap, 5000);
  FREE(block);
  RESULT(gmm_heap_try_alloc(heap, 5000, 4096, 0, GMM_STREAM_DEFAULT, &again), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(heap, 5000, 0, GMM_ALLOC_ZERO, GMM_STREAM_DEFAULT, &again), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(heap, 0, 0, 0, GMM_STREAM_DEFAULT, &again), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(NULL, 5000, 0, 0, GMM_STREAM_DEFAULT, &again), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, NULL), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &again), GMM_OK);
  CHECK(again == block);
}

static int try_both(void *block) {
  void *out = NULL;
  return gmm_try_alloc(context, 100, HERE(), &out) != GMM_ERROR_NOT_READY ||
         gmm_try_free(context, block, GMM_STREAM_DEFAULT) != GMM_ERROR_NOT_READY;
}
// The plain calls name the mistake. A program of a newer release passes a larger struct, and has the fast path too
// where it uses nothing new.
CASE_OF_KINDS(descriptors_are_looked_at, ALL_KINDS) {
  struct {
    gmm_alloc_desc desc;
    unsigned char tail[24];
  } newer = {.desc = alloc_desc()};
  const gmm_alloc_desc good = newer.desc;
  gmm_alloc_desc bad[] = {good, good, good, good};
  newer.desc.struct_size = sizeof newer;
  bad[0].kind = 99;
  bad[1].device = 99;
  bad[2].tag = 3993;
  bad[3].struct_size = 4;
  void *block = ALLOC(100), *out = NULL;
  FREE(ALLOC(100));
  OK(gmm_try_alloc(context, 100, &newer.desc, &out));
  FREE(out);
  newer.tail[23] = 1;
  RESULT(gmm_try_alloc(context, 100, &newer.desc, &out), GMM_ERROR_NOT_READY);
  for (unsigned i = 0; i < 4; ++i) RESULT(gmm_try_alloc(context, 100, &bad[i], &out), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(NULL, 100, &good, &out), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(context, 100, &good, NULL), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(context, 0, &good, &out), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_alloc(context, UINT64_MAX, &good, &out), GMM_ERROR_NOT_READY);
  CHECK(out == NULL);
  RESULT(gmm_try_free(NULL, block, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_free(NULL, NULL, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_free(context, &out, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  OK(gmm_try_free(context, NULL, GMM_STREAM_DEFAULT));
  if (kind == GMM_KIND_DEVICE && device == 0) {
    OK(gmm_try_alloc(context, 100, NULL, &out));
    FREE(out);
  }
  CHECK_EQUAL(in_child(try_both, block), 0);
}

VMM_CASE(paused_memory_is_not_given_out) {
  const gmm_tag tag = make_tag("cached", GMM_CONTENTS_DROP);
  void *block = ALLOC_TAG(5000, tag), *out = NULL;
  FREE(ALLOC_TAG(5000, tag));
  OK(pause_of(tag));
  RESULT(gmm_try_alloc(context, 5000, HERE(.tag = tag), &out), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  OK(resume_of(tag));
}

int main(void) { return run_cases(); }
