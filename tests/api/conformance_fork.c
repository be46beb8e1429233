// SPDX-License-Identifier: Apache-2.0
// A forked child may open a context of its own. bad_input.c calls the parent's there.
#include "../support/gmm_test.h"

static int live_in_a_child(void *unused) {
  (void)unused;
  gmm_context *own = NULL;
  void *mine = NULL;
  const bool good =
      gmm_context_create(NULL, &own) == GMM_OK && gmm_tag_push(own, GMM_TAG_DEFAULT) == GMM_OK &&
      gmm_alloc(own, 1000, NULL, &mine) == GMM_OK && gmm_fill(own, mine, 1, 1000, GMM_STREAM_DEFAULT) == GMM_OK &&
      gmm_stream_synchronize(own, GMM_STREAM_DEFAULT) == GMM_OK && gmm_free(own, mine, GMM_STREAM_DEFAULT) == GMM_OK &&
      gmm_context_release(own) == GMM_OK && gmm_free(context, mine, 0) == GMM_ERROR_FORKED;
  return !good;
}

// Threads of the parent end, and make and end heaps and contexts, while it forks: a child finds every lock of the
// process usable, whoever held it.
static atomic_int storm_over;
static void *end_with_a_cache(void *heap) {
  FREE(take_of(heap, 1000));
  return NULL;
}
static void *end_threads(void *heap) {
  while (!atomic_load(&storm_over)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_with_a_cache, heap) == 0) pthread_join(thread, NULL);
  }
  return NULL;
}
static void *make_heaps(void *unused) {
  (void)unused;
  while (!atomic_load(&storm_over)) {
    OK(gmm_heap_destroy(HEAP()));
  }
  return NULL;
}
static void *make_contexts(void *trace) {
  while (!atomic_load(&storm_over)) {
    gmm_context *other = open_context(1);
    OK(gmm_trace_begin(other, trace, NULL));
    OK(gmm_tag_push(other, GMM_TAG_DEFAULT));
    OK(gmm_context_release(other));
    RESULT(gmm_alloc(NULL, 100, NULL, (void **)&other), GMM_ERROR_NULL_ARGUMENT);
  }
  return NULL;
}
static void *live_in_a_thread(void *unused) { return live_in_a_child(unused) == 0 ? context : NULL; }
static int live_twice_in_a_child(void *unused) {
  alarm(30);  // of a child that hangs
  if (live_in_a_child(unused) != 0) return 2;
  pthread_t thread;
  void *good = NULL;
  if (pthread_create(&thread, NULL, live_in_a_thread, NULL) != 0 || pthread_join(thread, &good) != 0) return 3;
  return good == NULL ? 4 : 0;
}
CASE(children_find_no_lock_held) {
  enum { FORKS = 300 };
  if (!on_host_backend()) SKIP("a CUDA driver that was started does not work in a forked child");
  // Its allocator's lock stays held in a child if another thread held it at the fork; glibc's malloc frees its own.
  if (CHECK_SANITIZED) SKIP("a sanitizer's own locks are not usable in a forked child");
  char trace[] = "/tmp/gmm-fork-XXXXXX";
  int fd = mkstemp(trace);
  REQUIRE(fd >= 0);
  close(fd);
  gmm_heap *heap = HEAP();
  atomic_store(&storm_over, 0);
  pthread_t threads[4];
  REQUIRE(pthread_create(&threads[0], NULL, end_threads, heap) == 0);
  REQUIRE(pthread_create(&threads[1], NULL, end_threads, heap) == 0);
  REQUIRE(pthread_create(&threads[2], NULL, make_heaps, NULL) == 0);
  REQUIRE(pthread_create(&threads[3], NULL, make_contexts, trace) == 0);
  fflush(stdout);
  for (unsigned i = 0; i < FORKS && atomic_load(&check_state.failures) == 0; ++i) {
    const int status = in_child(live_twice_in_a_child, NULL);
    CHECK_MESSAGE(status == 0, "child %u ended with status 0x%x", i, status);
  }
  atomic_store(&storm_over, 1);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  OK(gmm_heap_destroy(heap));
  unlink(trace);
}

int main(void) { return run_cases(); }
