// SPDX-License-Identifier: Apache-2.0
// Threads have caches of their own, free other threads' blocks, and end with memory in their caches.
#include "../support/gmm_test.h"

enum { THREADS = 8, SLOTS = 64, ROUNDS = 4000 };

static uint32_t next_random(uint32_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

// --- 8 threads take and give back at random ------------------------------------------------------------------------
static struct {
  pthread_mutex_t lock;
  struct {
    uintptr_t start, end;
  } live[THREADS * SLOTS];
} model = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *random_thread(void *argument) {
  unsigned me = (unsigned)(uintptr_t)argument;
  uint32_t state = 12345 + me * 777;
  void *blocks[SLOTS] = {0};
  for (unsigned round = 0; round < ROUNDS; ++round) {
    unsigned slot = next_random(&state) % SLOTS, place = me * SLOTS + slot;
    if (blocks[slot] != NULL) {
      pthread_mutex_lock(&model.lock);
      model.live[place].start = model.live[place].end = 0;
      pthread_mutex_unlock(&model.lock);
      OK(gmm_free(context, blocks[slot], GMM_STREAM_DEFAULT));
      blocks[slot] = NULL;
      continue;
    }
    uint64_t size = 1 + next_random(&state) % (round % 50 == 0 ? 2000000 : round % 5 == 0 ? 100000 : 3000);
    blocks[slot] = ALLOC(size);
    if (blocks[slot] == NULL) break;
    uintptr_t start = (uintptr_t)blocks[slot], end = start + size;
    pthread_mutex_lock(&model.lock);
    for (unsigned i = 0; i < THREADS * SLOTS; ++i)
      if (model.live[i].start < end && start < model.live[i].end)
        check_failed(__FILE__, __LINE__, "two live blocks overlap at %p", blocks[slot]);
    model.live[place].start = start;
    model.live[place].end = end;
    pthread_mutex_unlock(&model.lock);
    gmm_pointer_info info = query((char *)blocks[slot] + size - 1);
    CHECK(info.base == blocks[slot]);
    CHECK_EQUAL(info.size, size);
  }
  for (unsigned slot = 0; slot < SLOTS; ++slot) {
    pthread_mutex_lock(&model.lock);
    model.live[me * SLOTS + slot].start = model.live[me * SLOTS + slot].end = 0;
    pthread_mutex_unlock(&model.lock);
    OK(gmm_free(context, blocks[slot], GMM_STREAM_DEFAULT));  // NULL where there is none
  }
  return NULL;
}

static void live_blocks_never_overlap(void) {
  memset(model.live, 0, sizeof model.live);
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; ++i) REQUIRE(pthread_create(&threads[i], NULL, random_thread, (void *)i) == 0);
  for (unsigned i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  gmm_stats_info s = stats();
  CHECK_EQUAL(s.live_blocks, 0);
  CHECK_EQUAL(s.live_bytes, 0);
  CHECK_EQUAL(s.allocations, s.frees);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

// --- frees from other threads ----------------------------------------------------------------------------------------
static void *passed_on[400];
static void *free_them(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 400; ++i) OK(gmm_free(context, passed_on[i], GMM_STREAM_DEFAULT));
  for (unsigned i = 0; i < 400; i += 50) {
    gmm_result result = gmm_free(context, passed_on[i], GMM_STREAM_DEFAULT);
    CHECK_MESSAGE(result == GMM_ERROR_ALREADY_FREED || result == GMM_ERROR_UNKNOWN_POINTER, "%s",
                  gmm_result_name(result));
  }
  return NULL;
}
static void other_threads_free(void) {
  for (unsigned round = 0; round < 10; ++round) {
    for (unsigned i = 0; i < 400; ++i) REQUIRE((passed_on[i] = ALLOC(500 + i * (i % 10 == 0 ? 5000 : 10))) != NULL);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, free_them, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK_EQUAL(stats().live_blocks, 0);
  }
  CHECK(stats().reserved_bytes <= 320 * MIB);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void *allocate_them(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 400; ++i) passed_on[i] = ALLOC(1000 + i);
  return NULL;
}
static void blocks_outlive_their_thread(void) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, allocate_them, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK_EQUAL(stats().live_blocks, 400);
  for (unsigned i = 0; i < 400; ++i) {
    REQUIRE(passed_on[i] != NULL);
    write_pattern(passed_on[i], 1000, i, GMM_STREAM_DEFAULT);
  }
  for (unsigned i = 0; i < 400; ++i) {
    CHECK_PATTERN(passed_on[i], 1000, i);
    OK(gmm_free(context, passed_on[i], GMM_STREAM_DEFAULT));
  }
  CHECK_EQUAL(stats().live_blocks, 0);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

// --- the end of a thread ---------------------------------------------------------------------------------------------
static void *fill_a_cache(void *unused) {
  (void)unused;
  void *blocks[200];
  for (unsigned i = 0; i < 200; ++i) blocks[i] = ALLOC(100 + i * 40);
  for (unsigned i = 0; i < 200; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  return NULL;
}
static void ended_threads_lose_nothing(void) {
  uint64_t held = 0;
  for (unsigned round = 0; round < 60; ++round) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, fill_a_cache, NULL) == 0);
    pthread_join(thread, NULL);
    if (round == 9) held = stats().reserved_bytes;
  }
  gmm_stats_info s = stats();
  CHECK_EQUAL(s.live_blocks, 0);
  CHECK_EQUAL(s.allocations, 60 * 200);
  CHECK_EQUAL(s.frees, 60 * 200);
  CHECK_EQUAL(s.cached_bytes, s.reserved_bytes);
  CHECK_MESSAGE(s.reserved_bytes <= held, "%llu bytes held after 10 threads, %llu after 60", (unsigned long long)held,
                (unsigned long long)s.reserved_bytes);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static struct { pthread_barrier_t filled, go; } idle;
static void *idle_with_a_cache(void *unused) {
  fill_a_cache(unused);
  pthread_barrier_wait(&idle.filled);
  pthread_barrier_wait(&idle.go);
  void *block = ALLOC(500);  // its cache was emptied under it
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  return NULL;
}
static void trim_reaches_idle_threads(void) {
  pthread_barrier_init(&idle.filled, NULL, 5);
  pthread_barrier_init(&idle.go, NULL, 5);
  pthread_t threads[4];
  for (unsigned i = 0; i < 4; ++i) REQUIRE(pthread_create(&threads[i], NULL, idle_with_a_cache, NULL) == 0);
  pthread_barrier_wait(&idle.filled);
  CHECK(stats().reserved_bytes > 0);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  pthread_barrier_wait(&idle.go);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  CHECK_EQUAL(stats().live_blocks, 0);
}

// --- trim, stats, query and snapshot beside running threads ----------------------------------------------------------
static atomic_int stop;
static void *busy_thread(void *argument) {
  uint32_t state = 99 + (uint32_t)(uintptr_t)argument;
  void *blocks[16] = {0};
  while (!atomic_load(&stop)) {
    unsigned slot = next_random(&state) % 16;
    if (blocks[slot] != NULL) {
      OK(gmm_free(context, blocks[slot], GMM_STREAM_DEFAULT));
      blocks[slot] = NULL;
    } else {
      blocks[slot] = ALLOC(1 + next_random(&state) % 300000);
    }
  }
  for (unsigned slot = 0; slot < 16; ++slot)
    if (blocks[slot] != NULL) OK(gmm_free(context, blocks[slot], GMM_STREAM_DEFAULT));
  return NULL;
}
static int32_t count_text(void *user, const char *text, uint64_t size) {
  (void)text;
  *(uint64_t *)user += size;
  return 0;
}
static void readers_run_beside_writers(void) {
  atomic_store(&stop, 0);
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; ++i) REQUIRE(pthread_create(&threads[i], NULL, busy_thread, (void *)i) == 0);
  double end = now_s() + 0.5;
  uint32_t state = 5;
  void *own = ALLOC(5000);
  while (now_s() < end) {
    gmm_stats_info s = stats();
    CHECK(s.live_blocks <= 65 && s.live_bytes <= 20 * MIB);
    uint64_t size = 0;
    OK(write_snapshot(context, count_text, &size));
    CHECK(size > 20);
    OK(gmm_trim(context, NULL, NULL));
    for (unsigned i = 0; i < 100; ++i) query((char *)own + (next_random(&state) % 10000000) - 5000000);
    CHECK_EQUAL(query(own).state, GMM_STATE_ACTIVE);
  }
  atomic_store(&stop, 1);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  OK(gmm_free(context, own, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(stats().live_blocks, 0);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

// --- contexts and threads of different lives -------------------------------------------------------------------------
static void *outlives_the_context(void *unused) {
  fill_a_cache(unused);
  pthread_barrier_wait(&idle.filled);
  pthread_barrier_wait(&idle.go);  // the context is gone now
  gmm_context *other = open_context(1);
  void *block = NULL;
  OK(gmm_alloc(other, 1000, NULL, &block));
  OK(gmm_free(other, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  return NULL;
}
static void threads_outlive_a_context(void) {
  pthread_barrier_init(&idle.filled, NULL, 2);
  pthread_barrier_init(&idle.go, NULL, 2);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, outlives_the_context, NULL) == 0);
  pthread_barrier_wait(&idle.filled);
  OK(gmm_context_release(context));
  pthread_barrier_wait(&idle.go);
  pthread_join(thread, NULL);
  context = open_context(2);
}

static gmm_context *of_threads[4];
static void *use_all_contexts(void *argument) {
  uint32_t state = 31 + (uint32_t)(uintptr_t)argument;
  for (unsigned i = 0; i < 2000; ++i) {
    gmm_context *c = of_threads[next_random(&state) % 4];
    void *block = NULL;
    OK(gmm_alloc(c, 1 + next_random(&state) % 10000, NULL, &block));
    OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  }
  return NULL;
}
static void threads_use_several_contexts(void) {
  for (unsigned i = 0; i < 4; ++i) of_threads[i] = open_context(1);
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; ++i) REQUIRE(pthread_create(&threads[i], NULL, use_all_contexts, (void *)i) == 0);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < 4; ++i) {
    gmm_stats_info s = {.struct_size = sizeof s};
    OK(gmm_stats_query(of_threads[i], NULL, &s));
    CHECK_EQUAL(s.live_blocks, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    OK(gmm_context_release(of_threads[i]));
  }
}

// --- pausing beside threads that use other tags ----------------------------------------------------------------------
static void pausing_disturbs_no_other_tag(void) {
  gmm_tag tag = make_tag("paused", GMM_CONTENTS_HOST);
  atomic_store(&stop, 0);
  pthread_t threads[4];
  void *blocks[10];
  for (unsigned i = 0; i < 10; ++i) {
    REQUIRE((blocks[i] = ALLOC_TAG(100000 * (i + 1), tag)) != NULL);
    write_pattern(blocks[i], 100000, i, GMM_STREAM_DEFAULT);
  }
  for (uintptr_t i = 0; i < 4; ++i) REQUIRE(pthread_create(&threads[i], NULL, busy_thread, (void *)i) == 0);
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  double end = now_s() + 0.5;
  while (now_s() < end) {
    OK(gmm_pause(context, &desc, NULL));
    OK(gmm_resume(context, &desc, NULL));
  }
  atomic_store(&stop, 1);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < 10; ++i) {
    CHECK_PATTERN(blocks[i], 100000, i);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
  CHECK_EQUAL(stats().live_blocks, 0);
}

int main(void) {
  KINDS(live_blocks_never_overlap, ALL_KINDS);
  KINDS(other_threads_free, ALL_KINDS);
  KINDS(blocks_outlive_their_thread, ALL_KINDS);
  KINDS(ended_threads_lose_nothing, ALL_KINDS);
  KINDS(trim_reaches_idle_threads, ALL_KINDS);
  KINDS(readers_run_beside_writers, ALL_KINDS);
  KINDS(pausing_disturbs_no_other_tag, 1u << GMM_KIND_VMM);
  PLAIN(threads_outlive_a_context);
  PLAIN(threads_use_several_contexts);
  return finish_clean();
}
