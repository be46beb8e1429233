// SPDX-License-Identifier: Apache-2.0
// Trim, reset and defer of stats.h.
#include <pthread.h>

#include "../support/gmm_test.h"

CASE_OF_KINDS(trim_gives_everything_back, ALL_KINDS) {
  void *blocks[100];
  for (unsigned i = 0; i < 100; ++i) blocks[i] = ALLOC(1000 + i * i * 150);
  uint64_t held = stats().reserved_bytes;
  CHECK(held > 0);
  for (unsigned i = 1; i < 100; ++i) FREE(blocks[i]);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  write_pattern(blocks[0], 1000, 7, GMM_STREAM_DEFAULT);
  uint64_t bytes = 0;
  gmm_stats_info before = stats();
  OK(gmm_trim(context, NULL, &bytes));
  gmm_stats_info after = stats();
  CHECK_EQUAL(before.reserved_bytes - after.reserved_bytes, bytes);
  CHECK(bytes > 0);
  CHECK_PATTERN(blocks[0], 1000, 7);
  CHECK(after.reserved_bytes <= 8 * MIB);
  FREE(blocks[0]);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  NOTHING_STAYS();
  CHECK_EQUAL(stats().extents, 0);
  CHECK(stats().peak_reserved_bytes >= held);
  bytes = 5;
  CHECK(gmm_trim(context, NULL, &bytes) >= 0);
  CHECK_EQUAL(bytes, 0);
}

CASE_OF_KINDS(trim_keeps_to_its_scope, ALL_KINDS) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP);
  void *x = ALLOC_TAG(4 * MIB, a), *y = ALLOC_TAG(4 * MIB, b);
  FREE(x, y);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  gmm_scope_desc scope = scope_of(GMM_SCOPE_TAG, 0, a, 0);
  uint64_t bytes = 0;
  OK(gmm_trim(context, &scope, &bytes));
  CHECK(bytes >= 4 * MIB);
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, a, 0).reserved_bytes, 0);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, b, 0).reserved_bytes >= 4 * MIB);
  scope = scope_of(GMM_SCOPE_KIND, 0, 0, kind == GMM_KIND_HOST ? GMM_KIND_DEVICE : GMM_KIND_HOST);
  CHECK(gmm_trim(context, &scope, &bytes) >= 0);
  CHECK_EQUAL(bytes, 0);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, b, 0).reserved_bytes >= 4 * MIB);
}

CASE_OF_KINDS(reset_ends_all_blocks, ALL_KINDS) {
  gmm_tag tag = make_tag("stays", GMM_CONTENTS_HOST);
  gmm_heap *heap = HEAP();
  void *blocks[60], *from_heap = NULL;
  for (unsigned i = 0; i < 60; ++i) blocks[i] = ALLOC_TAG(500 + i * 9000, i % 2 ? tag : GMM_TAG_DEFAULT);
  FREE_ALL(blocks, 20);
  OK(gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &from_heap));
  gmm_stream stream = open_stream();
  static gate hold;
  gate_close(&hold, stream, 0.05);
  OK(gmm_fill(context, blocks[59], 1, 500, stream));
  if (kind == GMM_KIND_VMM) {
    void *alone = alloc_here(__LINE__, 12 * MIB, tag, GMM_STREAM_DEFAULT, GMM_ALLOC_DEDICATED);
    OK(pause_of(tag));
    OK(gmm_resume_range(context, alone, MIB, NULL));
    CHECK_EQUAL(tag_info(tag).state, GMM_STATE_PARTLY_PAUSED);
  }
  OK(gmm_reset(context));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  const gmm_stats_info s = stats();
  CHECK(s.live_blocks == 0 && s.live_bytes == 0 && s.reserved_bytes == 0 && s.paused_bytes == 0 && s.extents == 0);
  for (unsigned i = 0; i < 60; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_UNKNOWN);
  CHECK_EQUAL(tag_info(tag).active_bytes + tag_info(tag).paused_bytes, 0);
  CHECK_EQUAL(tag_info(tag).state, GMM_STATE_ACTIVE);
  gmm_result result = gmm_free(context, blocks[40], GMM_STREAM_DEFAULT);
  CHECK_MESSAGE(result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_ALREADY_FREED, "%s",
                gmm_result_name(result));
  gmm_tag found = 0;
  OK(gmm_tag_find(context, "stays", &found));
  CHECK_EQUAL(found, tag);
  OK(gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &from_heap));  // heaps stay
  for (unsigned i = 0; i < 60; ++i) blocks[i] = FILLED_TAG(500 + i * 9000, tag, i);
  for (unsigned i = 0; i < 60; ++i) CHECK_PATTERN(blocks[i], 500 + i * 9000, i);
}

CASE_OF_KINDS(defer_puts_trims_off, ALL_KINDS) {
  RESULT(gmm_defer_end(context), GMM_ERROR_UNBALANCED);
  FREE(ALLOC(20 * MIB));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_defer_begin(context));
  OK(gmm_defer_begin(context));
  uint64_t bytes = 5, held = stats().reserved_bytes;
  RESULT(gmm_trim(context, NULL, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_EQUAL(stats().reserved_bytes, held);
  OK(gmm_defer_end(context));
  CHECK_EQUAL(stats().reserved_bytes, held);
  RESULT(gmm_trim(context, NULL, NULL), GMM_UNCHANGED);
  OK(gmm_defer_end(context));
  CHECK_EQUAL(stats().reserved_bytes, 0);  // the trim that was put off
  RESULT(gmm_defer_end(context), GMM_ERROR_UNBALANCED);
}

CASE_OF_KINDS(deferred_memory_serves_an_allocation_that_would_fail, ALL_KINDS) {
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP);
  OK(gmm_defer_begin(context));
  void *block = ALLOC_FLAGS(5 * MIB, GMM_ALLOC_DEDICATED);
  const uint64_t calls = stats().backend_calls;
  FREE(block);
  CHECK_EQUAL(stats().backend_calls, calls);
  CHECK_EQUAL(stats().live_blocks, 0);
  // An allocation that would fail ends the wait.
  for (unsigned i = 0; i < 2; ++i) {
    OK(try_alloc(20 * MIB, i == 0 ? a : b, &block));
    FREE(block);
  }
  OK(gmm_defer_end(context));
}

// Soon: the wait has a bound, counted in looks at the stream, not in time.
static void *open_later(void *user) {
  sleep_ms(5);
  atomic_store(&((gate *)user)->open, 1);
  return NULL;
}

// A host far ahead of its device: free memory is still used by queued work, and is waited for rather than as much
// taken again.
VMM_CASE(growth_waits_for_memory_that_queued_work_uses) {
  gmm_stream stream = open_stream();
  void *first = ALLOC_STREAM(160 * MIB, stream);
  ALLOC_STREAM(32 * MIB, stream);
  static gate hold;
  gate_close(&hold, stream, GATE_S);
  OK(gmm_free(context, first, stream));
  const pthread_t opener = start_thread(open_later, &hold);
  ALLOC_STREAM(192 * MIB, stream);
  CHECK_MESSAGE(atomic_load(&hold.open) == 1, "the allocation did not wait");
  // 384 without it. A device that is behind has an allowance of a seventh.
  CHECK_MESSAGE(stats().reserved_bytes <= 256 * MIB, "%llu MiB are held for 224",
                (unsigned long long)(stats().reserved_bytes / MIB));
  pthread_join(opener, NULL);
}

// The wait has an end: the work may itself wait for the thread that allocates here.
VMM_CASE(that_wait_ends) {
  gmm_stream stream = open_stream();
  void *first = ALLOC_STREAM(160 * MIB, stream);
  static gate hold;
  gate_close(&hold, stream, 200);  // each of the few thousand looks may take a busy machine some milliseconds
  OK(gmm_free(context, first, stream));
  ALLOC_STREAM(192 * MIB, stream);
  CHECK_MESSAGE(atomic_load(&hold.passed) == 0, "the allocation waited for work that had not ended");
  CHECK(stats().reserved_bytes >= 192 * MIB);
  atomic_store(&hold.open, 1);
}

// The driver takes back whole extents, so what survives in one keeps all of it.
CASE_OF_KINDS(small_survivors_hold_little, ALL_KINDS) {
  enum { SIZE = 65536, BLOCKS = 4096, EACH = 512 };  // 256 MiB; a survivor every 32 MiB
  static void *blocks[BLOCKS];
  for (unsigned i = 0; i < BLOCKS; ++i) blocks[i] = ALLOC(SIZE);
  const uint64_t before = stats().reserved_bytes;
  for (unsigned i = 0; i < BLOCKS; ++i)
    if (i % EACH != 0) FREE(blocks[i]);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_MESSAGE(stats().reserved_bytes <= 2 * MIB * (BLOCKS / EACH), "%u survivors of 64 KiB hold %llu MiB of %llu",
                BLOCKS / EACH, (unsigned long long)(stats().reserved_bytes / MIB), (unsigned long long)(before / MIB));
  for (unsigned i = 0; i < BLOCKS; i += EACH) FREE(blocks[i]);
  NOTHING_STAYS();
}

// A heap of one small block holds the least that the driver gives.
CASE_OF_KINDS(small_tags_hold_little, ALL_KINDS) {
  enum { TAGS = 50 };
  void *blocks[TAGS];
  for (unsigned i = 0; i < TAGS; ++i) {
    char name[32];
    snprintf(name, sizeof name, "small %u", i);
    blocks[i] = ALLOC_TAG(256, make_tag(name, GMM_CONTENTS_DROP));
  }
  CHECK_MESSAGE(stats().reserved_bytes <= TAGS * 2 * MIB, "%u blocks of 256 bytes hold %llu MiB", TAGS,
                (unsigned long long)(stats().reserved_bytes / MIB));
  FREE_ALL(blocks, TAGS);
  NOTHING_STAYS();
}

int main(void) { return run_cases(); }
