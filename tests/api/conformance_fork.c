// SPDX-License-Identifier: Apache-2.0
// A forked child may do nothing with its parent's context, and every call there says so.
#include <sys/wait.h>

#include "../support/gmm_test.h"

// The child does not free the parent's memory; the leak sanitizer asks here.
int __lsan_is_turned_off(void);
static int is_child;
int __lsan_is_turned_off(void) { return is_child; }

static int32_t agree(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}

// bad_input.c makes every other call in a child.
CASE(a_child_ends_nothing_of_its_parent) {
  const bool on_sycl = backend_id() == GMM_BACKEND_SYCL;
  gmm_event *event = NULL;
  gmm_snapshot *snapshot = NULL;
  gmm_watcher *watcher = NULL;
  gmm_lease *lease = NULL;
  gmm_ipc_handle handle;
  void *block = FILLED(100000, 5);
  const gmm_stream stream = open_stream();
  gmm_heap *heap = HEAP();
  MUST(gmm_event_create(context, NULL, &event));
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  MUST(gmm_watch(context, DESC(watch_desc, .events = GMM_WATCH_PREPARE, .callback = {agree, NULL}), &watcher));
  MUST(gmm_lease_create(context, DESC(lease_desc, .name = "one"), &lease));
  OK(gmm_lease_request(lease, NULL, NULL));
  const gmm_result exported = gmm_ipc_export(context, block, &handle);
  CHECK(exported == GMM_OK || exported == GMM_ERROR_NOT_SUPPORTED);
  OK(gmm_fill(context, block, 1, 10, stream));
  write_pattern(block, 100000, 5, stream);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    is_child = 1;
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_FORKED);
    RESULT(gmm_stream_destroy(context, stream), GMM_ERROR_FORKED);
    RESULT(gmm_heap_destroy(heap), GMM_ERROR_FORKED);
    RESULT(gmm_event_destroy(event), GMM_ERROR_FORKED);
    RESULT(gmm_snapshot_destroy(snapshot), GMM_ERROR_FORKED);
    RESULT(gmm_watcher_destroy(watcher), GMM_ERROR_FORKED);
    RESULT(gmm_lease_destroy(lease), GMM_ERROR_FORKED);
    RESULT(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER), GMM_ERROR_FORKED);
    RESULT(gmm_context_release(context), GMM_ERROR_FORKED);
    CHECK(message_has("fork"));
    const int code = atomic_load(&check_state.failures) != 0 ? 3 : 0;
    // Intel's OpenCL waits at exit for queues that were busy at the fork, and their threads are the parent's.
    if (on_sycl) _exit(code);
    exit(code);  // exit(), not _exit(): no handler of the library may hang or crash
  }
  int status = -1;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  CHECK_MESSAGE(status == 0, "the child ended with status 0x%x", status);
  OK(gmm_lease_destroy(lease));
  CHECK_PATTERN(block, 100000, 5);
  OK(gmm_event_destroy(event));
  OK(gmm_snapshot_destroy(snapshot));
}

static void need_host_backend(void) {
  if (!on_host_backend()) SKIP("a CUDA driver that was started does not work in a forked child");
}
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

CASE(a_child_may_open_its_own) {
  need_host_backend();
  ALLOC(100);
  CHECK_EQUAL(in_child(live_in_a_child, NULL), 0);
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
    OK(gmm_trace_begin(other, trace));
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
  need_host_backend();
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

int main(void) {
  start_own_server();
  return run_cases();
}
