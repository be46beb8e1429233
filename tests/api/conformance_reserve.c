// SPDX-License-Identifier: Apache-2.0
// gmm_heap_reserve() of memory.h: memory that a heap takes beforehand, keeps, and serves without a driver call.
#include <sys/resource.h>

#include "counted_allocator.h"
#include "fault_support.h"

static uint64_t held(void) { return stats().reserved_bytes; }
static void trim(void) {
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
}

// Every call of the driver, questions too; where only gmm can count, those that change something.
static uint64_t driver_calls(void) { return fake.count != NULL ? fake.count(NULL) : stats().backend_calls; }

CASE_OF_KINDS(it_is_held_until_it_ends, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  OK(gmm_heap_reserve(heap, 64 * MIB - 5));
  CHECK_EQUAL(held(), 64 * MIB);
  CHECK_EQUAL(stats().live_bytes, 0);
  trim();
  CHECK_EQUAL(held(), 64 * MIB);
  OK(gmm_reset(context));
  CHECK_EQUAL(held(), 64 * MIB);
  OK(gmm_heap_reserve(heap, 64 * MIB));  // as much is there
  CHECK_EQUAL(held(), 64 * MIB);
  // The whole is one run: one block may have it.
  const uint64_t calls = driver_calls();
  void *all = take_of(heap, 64 * MIB);
  CHECK_EQUAL(driver_calls(), calls);
  write_pattern(all, 64 * MIB, 3, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(all, 64 * MIB, 3);
  FREE(all);
  OK(gmm_heap_reserve(heap, 0));
  CHECK_EQUAL(held(), 64 * MIB);  // for the next trim
  trim();
  CHECK_EQUAL(held(), 0);
}

CASE_OF_KINDS(a_heap_with_a_reserve_can_be_destroyed, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  OK(gmm_heap_reserve(heap, 8 * MIB));
  void *block = take_of(heap, 5000);
  write_pattern(block, 5000, 1, GMM_STREAM_DEFAULT);
  RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
  CHECK_PATTERN(block, 5000, 1);
  FREE(block);
  trim();
  CHECK_EQUAL(held(), 8 * MIB);  // the refused end took nothing
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(held(), 0);
  CHECK_EQUAL(state_of(block), GMM_STATE_UNKNOWN);
}

CASE_OF_KINDS(a_later_number_replaces_it, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  OK(gmm_heap_reserve(heap, 16 * MIB));
  OK(gmm_heap_reserve(heap, 48 * MIB));
  CHECK_EQUAL(held(), 48 * MIB);
  OK(gmm_heap_reserve(heap, 20 * MIB));
  trim();
  // Whole driver allocations or extents go, and never one too many.
  CHECK(held() >= 20 * MIB);
  CHECK(held() < 48 * MIB);
  OK(gmm_heap_reserve(heap, 0));
}

CASE_OF_KINDS(live_blocks_count_and_dedicated_ones_do_not, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  void *block = take_of(heap, 30 * MIB), *alone = NULL;
  const uint64_t before = held();
  OK(gmm_heap_reserve(heap, before));
  CHECK_EQUAL(held(), before);
  OK(gmm_heap_alloc(heap, 8 * MIB, 0, GMM_ALLOC_DEDICATED, GMM_STREAM_DEFAULT, &alone));
  const uint64_t of_alone = held() - before;
  OK(gmm_heap_reserve(heap, before + 4 * MIB));
  CHECK_EQUAL(held(), before + of_alone + 4 * MIB);
  FREE(alone);
  trim();
  CHECK_EQUAL(held(), before + 4 * MIB);
  FREE(block);
  trim();
  CHECK_EQUAL(held(), before + 4 * MIB);
}

CASE_OF_KINDS(all_or_nothing, ALL_KINDS) {
  gmm_heap *heap = HEAP(.limit = 64 * MIB);
  OK(gmm_heap_reserve(heap, 16 * MIB));
  const uint64_t before = held(), extents = stats().extents;
  RESULT(gmm_heap_reserve(heap, 80 * MIB), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK(message_has("gmm_heap_reserve"));
  CHECK_EQUAL(held(), before);
  CHECK_EQUAL(stats().extents, extents);
  trim();
  CHECK_EQUAL(held(), 16 * MIB);  // the earlier number holds
  OK(gmm_heap_reserve(heap, 64 * MIB));
  CHECK_EQUAL(held(), 64 * MIB);
  // Others' free memory goes back where a limit stands in the way.
  FREE(ALLOC(40 * MIB));
  set_limit(GMM_SCOPE_DEVICE, 0, 110 * MIB);
  gmm_heap *other = HEAP();
  OK(gmm_heap_reserve(other, 32 * MIB));
  CHECK_EQUAL(held(), 96 * MIB);
  OK(gmm_heap_destroy(other));
  OK(gmm_heap_destroy(heap));
  RESULT(gmm_heap_reserve(NULL, 1), GMM_ERROR_NULL_ARGUMENT);
}

CASE_OF_KINDS(idle_memory_above_it_goes, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  OK(gmm_heap_reserve(heap, 24 * MIB));
  void *blocks[20];
  for (unsigned i = 0; i < 20; ++i) blocks[i] = take_of(heap, 5 * MIB);
  CHECK(held() >= 100 * MIB);
  for (unsigned i = 0; i < 20; ++i) FREE(blocks[i]);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_context_set_decommit(context, 10));
  SOON(held() < 72 * MIB);
  const uint64_t left = held();
  CHECK(left >= 24 * MIB);
  OK(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  trim();
  CHECK(held() >= 24 * MIB);
}

VMM_CASE(a_pause_takes_it_and_it_may_come_back) {
  const gmm_tag tag = make_tag("reserved", GMM_CONTENTS_HOST);
  gmm_heap *heap = HEAP(.tag = tag);
  OK(gmm_heap_reserve(heap, 16 * MIB));
  void *block = take_of(heap, 100000);
  write_pattern(block, 100000, 5, GMM_STREAM_DEFAULT);
  OK(pause_of(tag));
  CHECK_EQUAL(held(), 0);
  OK(resume_of(tag));
  CHECK_PATTERN(block, 100000, 5);
  OK(gmm_heap_reserve(heap, 16 * MIB));
  CHECK_EQUAL(held(), 16 * MIB);
}

// The first writes to reserved memory take no page of the system. The address sanitizer's shadow of the block has an
// eighth of its pages.
CASE_OF_KINDS(it_is_touched, ALL_KINDS) {
  if (!on_host_backend()) SKIP("the driver's memory has its pages from the start");
  gmm_heap *heap = HEAP();
  OK(gmm_heap_reserve(heap, 32 * MIB));
  void *block = take_of(heap, 32 * MIB);
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  memset(block, 1, 32 * MIB);
  getrusage(RUSAGE_SELF, &after);
  CHECK_MESSAGE(after.ru_minflt - before.ru_minflt < 2048, "%ld faults for 8192 pages",
                after.ru_minflt - before.ru_minflt);
}

// Random sizes in random order: 256 live blocks, of which each step replaces one.
enum { LIVE = 256 };
static uint64_t any(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}
static uint64_t any_size(uint64_t *state) {
  const uint64_t power = any(state) % 12;  // 512 bytes to 2 MiB, each power of two alike
  return (512u << power) + any(state) % (512u << power);
}
// By the plain calls, or by those that wait for nothing. Returns how often one was refused; all blocks are free again.
static uint64_t replace_at_random(gmm_heap *heap, unsigned steps, bool tries) {
  static void *blocks[LIVE];
  uint64_t state = 88172645463325252u, refused = 0;
  for (unsigned i = 0; i < LIVE + steps; ++i) {
    void **block = &blocks[i < LIVE ? i : any(&state) % LIVE];
    const uint64_t size = any_size(&state);
    if (i >= LIVE) refused += (tries ? gmm_try_free : gmm_free)(context, *block, GMM_STREAM_DEFAULT) != GMM_OK;
    refused += (tries ? gmm_heap_try_alloc : gmm_heap_alloc)(heap, size, 0, 0, GMM_STREAM_DEFAULT, block) != GMM_OK;
  }
  CHECK_EQUAL(stats().live_blocks, LIVE);
  for (unsigned i = 0; i < LIVE; ++i)
    refused += (tries ? gmm_try_free : gmm_free)(context, blocks[i], GMM_STREAM_DEFAULT) != GMM_OK;
  return refused;
}

// --- A thread that never waits ---------------------------------------------------------------------------------------

// Everything from a reserve: no driver call, and by the try forms no refusal and no call of the host allocator.
CASE_OF_KINDS(a_thread_may_never_wait, ALL_KINDS) {
  const unsigned steps = CHECK_SANITIZED ? 10000 : 300000;  // of a free and an allocation
  begin_counted((gmm_log_callback){NULL, NULL});
  gmm_heap *heap = HEAP();
  // 256 live blocks have at most 122 MiB at once here, 0.3 MiB each.
  OK(gmm_heap_reserve(heap, 160 * MIB));
  FREE(take_of(heap, 5000));  // the thread uses the heap for the first time
  const uint64_t calls = driver_calls(), bytes = held();
  const int64_t asked = atomic_load(&counted.calls);
  CHECK_EQUAL(replace_at_random(heap, steps, true), 0);
  CHECK_EQUAL(atomic_load(&counted.calls), asked);
  CHECK_EQUAL(replace_at_random(heap, steps, false), 0);
  CHECK_EQUAL(driver_calls(), calls);
  CHECK_EQUAL(held(), bytes);
  CHECK_EQUAL(stats().live_blocks, 0);
  CHECK_EQUAL(stats().allocations, stats().frees);
  end_counted();
}

// Memory that another stream freed last needs an event between the two: the plain form makes it.
CASE_OF_KINDS(another_streams_memory_is_refused, ALL_KINDS) {
  if (!on_host_backend()) SKIP("only the driver knows whether a stream is captured");
  gmm_heap *heap = HEAP();
  gmm_stream one = open_stream(), other = open_stream();
  void *block = NULL;
  OK(gmm_heap_reserve(heap, 128 * MIB));
  MUST(gmm_heap_alloc(heap, 128 * MIB, 0, 0, one, &block));
  OK(gmm_free(context, block, one));  // too large for a thread's cache
  RESULT(gmm_heap_try_alloc(heap, MIB, 0, 0, other, &block), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_try_alloc(heap, MIB, 0, 0, one, &block), GMM_OK);
}

// A pause has the heap's lock for as long as its program likes.
VMM_CASE(a_held_lock_is_not_waited_for) {
  const gmm_tag tag = make_tag("held", GMM_CONTENTS_HOST);
  gmm_heap *heap = HEAP(.tag = tag);
  blocker hold = BLOCKER;
  OK(gmm_heap_reserve(heap, 16 * MIB));
  void *kept = take_of(heap, MIB), *freed = take_of(heap, 70 * MIB), *block = NULL;  // the second fits into no cache
  write_pattern(kept, MIB, 5, GMM_STREAM_DEFAULT);
  gmm_ticket *ticket = start_held(true, &tag, &hold);
  RESULT(gmm_heap_try_alloc(heap, MIB, 0, 0, GMM_STREAM_DEFAULT, &block), GMM_ERROR_NOT_READY);
  RESULT(gmm_try_free(context, freed, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_READY);
  let_go(&hold);
  ENDS_WITH(ticket, GMM_OK);
  OK(resume_of(tag));
  CHECK_PATTERN(kept, MIB, 5);
}

int main(void) {
  gmm_context_release(open_context(1));  // opens the driver
  find_fake_driver();
  return run_cases();
}
