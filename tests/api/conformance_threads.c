// SPDX-License-Identifier: Apache-2.0
// Threads have caches of their own, and end with memory in them. The stress test has them free each other's blocks.
#include <sched.h>

#include "../support/gmm_test.h"

// --- the end of a thread ---------------------------------------------------------------------------------------------
static void *fill_a_cache(void *unused) {
  (void)unused;
  void *blocks[200];
  for (unsigned i = 0; i < 200; ++i) blocks[i] = ALLOC(100 + i * 40);
  FREE_ALL(blocks, 200);
  return NULL;
}
CASE_OF_KINDS(ended_threads_lose_nothing, ALL_KINDS) {
  uint64_t held = 0;
  for (unsigned round = 0; round < 60; ++round) {
    run_threads(1, fill_a_cache);
    if (round == 9) held = stats().reserved_bytes;
  }
  const gmm_stats_info s = stats();
  CHECK_EQUAL(s.allocations, 60 * 200);
  CHECK_EQUAL(s.frees, 60 * 200);
  CHECK_EQUAL(s.cached_bytes, s.reserved_bytes);
  CHECK_MESSAGE(s.reserved_bytes <= held, "%llu bytes held after 10 threads, %llu after 60", (unsigned long long)held,
                (unsigned long long)s.reserved_bytes);
  NOTHING_STAYS();
}

// --- idle threads ----------------------------------------------------------------------------------------------------
// Free blocks of every size: little for a thread, and much for hundreds of them. They stay idle until all are here.
enum { IDLE = 192, SMALL_SIZES = 131072 };
static atomic_uint idle, go_on;
static void *idle_with_a_cache(void *unused) {
  (void)unused;
  for (uint64_t size = 64; size <= SMALL_SIZES; size += size / 9 + 16) FREE(ALLOC(size));
  atomic_fetch_add(&idle, 1);
  while (atomic_load(&go_on) == 0) sleep_ms(5);
  FREE(ALLOC(500));  // its cache was emptied under it
  return NULL;
}
CASE_OF_KINDS(idle_threads_hold_little_and_a_trim_reaches_them, ALL_KINDS) {
  pthread_t threads[IDLE];
  atomic_store(&idle, 0);
  atomic_store(&go_on, 0);
  for (unsigned i = 0; i < IDLE; ++i) {
    REQUIRE(pthread_create(&threads[i], NULL, idle_with_a_cache, NULL) == 0);
    while (atomic_load(&idle) <= i) sched_yield();
  }
  CHECK(stats().reserved_bytes > 0);
  CHECK_MESSAGE(stats().reserved_bytes <= 192 * MIB, "%d idle threads hold %llu MiB", IDLE,
                (unsigned long long)(stats().reserved_bytes / MIB));
  NOTHING_STAYS();
  atomic_store(&go_on, 1);
  for (unsigned i = 0; i < IDLE; ++i) pthread_join(threads[i], NULL);
  CHECK_EQUAL(stats().live_blocks, 0);
}

// --- contexts and threads of different lives -------------------------------------------------------------------------
static void *outlives_the_context(void *unused) {
  fill_a_cache(unused);
  atomic_store(&idle, 1);
  while (atomic_load(&go_on) == 0) sleep_ms(1);  // the context is gone then
  context = open_context(2);
  FREE(ALLOC(1000));
  return NULL;
}
CASE(threads_outlive_a_context) {
  atomic_store(&idle, 0);
  atomic_store(&go_on, 0);
  const pthread_t thread = start_thread(outlives_the_context, NULL);
  while (atomic_load(&idle) == 0) sleep_ms(1);
  OK(gmm_context_release(context));
  atomic_store(&go_on, 1);
  pthread_join(thread, NULL);
}

int main(void) { return run_cases(); }
