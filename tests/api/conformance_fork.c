// SPDX-License-Identifier: Apache-2.0
// A forked child may do nothing with its parent's context, and every call there says so.
#include <sys/wait.h>

#include "../support/gmm_test.h"

// The child does not free the parent's memory; the leak sanitizer asks here.
int __lsan_is_turned_off(void);
static int is_child;
int __lsan_is_turned_off(void) { return is_child; }

#define FORKED(call)                                                    \
  do {                                                                  \
    gmm_result r = (call);                                              \
    if (r != GMM_ERROR_FORKED) {                                        \
      printf("# in the child %s gave %s\n", #call, gmm_result_name(r)); \
      ++wrong;                                                          \
    }                                                                   \
  } while (0)

static int32_t agree(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}
static void never_called(void *user) { (void)user; }
static int32_t write_nothing(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}

CASE(every_call_in_a_child_says_forked) {
  void *memory = NULL;
  MUST(gmm_alloc(context, 100000, NULL, &memory));
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, NULL, &stream));
  gmm_event *event = NULL;
  MUST(gmm_event_create(context, NULL, &event));
  gmm_snapshot *snapshot = NULL;
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  gmm_heap *heap = NULL;
  gmm_heap_desc heap_desc = {.struct_size = sizeof heap_desc};
  MUST(gmm_heap_create(context, &heap_desc, &heap));
  gmm_tag tag = 0;
  MUST(gmm_tag_create(context, "parent", NULL, &tag));
  gmm_watcher *watcher = NULL;
  const gmm_watch_desc watch_desc = {
      .struct_size = sizeof watch_desc, .events = GMM_WATCH_PREPARE, .tag = tag, .callback = {agree, NULL}};
  MUST(gmm_watch(context, &watch_desc, &watcher));
  const bool on_sycl = backend_id() == GMM_BACKEND_SYCL;
  gmm_lease *lease = NULL;
  const gmm_lease_desc lease_desc = {.struct_size = sizeof lease_desc, .name = "one"};
  MUST(gmm_lease_create(context, &lease_desc, &lease));
  OK(gmm_lease_request(lease, NULL, NULL));
  gmm_ipc_handle handle;
  memset(&handle, 0, sizeof handle);
  gmm_result exported = gmm_ipc_export(context, memory, &handle);
  CHECK(exported == GMM_OK || exported == GMM_ERROR_NOT_SUPPORTED);
  write_pattern(memory, 4096, 5, stream);
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    is_child = 1;
    int wrong = 0;
    void *out = NULL;
    uint8_t bytes[64] = {0};
    uint64_t number = 0;
    gmm_ipc_fd_info file = {.struct_size = sizeof file};
    gmm_context_info info = {.struct_size = sizeof info};
    gmm_device_info dev = {.struct_size = sizeof dev};
    gmm_pointer_info pointer = {.struct_size = sizeof pointer};
    gmm_tag_info paused = {.struct_size = sizeof paused};
    gmm_stats_info statistics = {.struct_size = sizeof statistics};
    gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE};
    gmm_heap *made = NULL;
    gmm_event *event_made = NULL;
    gmm_stream stream_made = 0;
    gmm_tag tag_made = 0;
    gmm_snapshot *snapshot_made = NULL;
    FORKED(gmm_context_retain(context));
    FORKED(gmm_context_query(context, &info));
    FORKED(gmm_device_query(context, 0, &dev));
    FORKED(gmm_alloc(context, 100, NULL, &out));
    FORKED(gmm_free(context, memory, GMM_STREAM_DEFAULT));
    FORKED(gmm_query(context, memory, &pointer));
    FORKED(gmm_heap_create(context, &heap_desc, &made));
    FORKED(gmm_heap_alloc(heap, 100, 0, 0, GMM_STREAM_DEFAULT, &out));
    FORKED(gmm_heap_reserve(heap, 100));
    FORKED(gmm_heap_destroy(heap));
    FORKED(gmm_stream_create(context, NULL, &stream_made));
    FORKED(gmm_stream_synchronize(context, stream));
    FORKED(gmm_stream_call(context, stream, never_called, NULL));
    FORKED(gmm_copy(context, memory, bytes, 64, stream));
    FORKED(gmm_fill(context, memory, 1, 64, stream));
    FORKED(gmm_record_use(context, memory, stream));
    FORKED(gmm_name(context, memory, "odd"));
    FORKED(gmm_event_create(context, NULL, &event_made));
    FORKED(gmm_event_record(event, 0, stream));
    FORKED(gmm_stream_wait_event(context, stream, event, 0));
    FORKED(gmm_event_synchronize(event, 0, GMM_FOREVER));
    FORKED(gmm_event_query(event, &number));
    FORKED(gmm_event_destroy(event));
    FORKED(gmm_stream_forget(context, stream));
    FORKED(gmm_stream_destroy(context, stream));
    FORKED(gmm_pin(context, bytes, 64, NULL, NULL));
    FORKED(gmm_unpin(context, bytes));
    FORKED(gmm_advise(context, memory, 0, GMM_ADVISE_SET_READ_MOSTLY, 0));
    FORKED(gmm_prefetch(context, memory, 0, 0, stream));
    FORKED(gmm_move(context, memory, 0, NULL));
    FORKED(gmm_tag_create(context, "child", NULL, &tag_made));
    FORKED(gmm_tag_find(context, "parent", &tag_made));
    FORKED(gmm_tag_push(context, tag));
    FORKED(gmm_tag_pop(context));
    FORKED(gmm_tag_destroy(context, tag));
    FORKED(gmm_tag_list(context, NULL, 0, &tag_made));
    FORKED(gmm_tag_set_default(context, tag));
    FORKED(gmm_pause(context, NULL, &number));
    FORKED(gmm_resume(context, NULL, &number));
    FORKED(gmm_tag_query(context, tag, &paused));
    FORKED(gmm_ipc_export(context, memory, &handle));
    FORKED(gmm_ipc_import(context, &handle, NULL, &out));
    FORKED(gmm_ipc_close(context, memory));
    gmm_ipc_legacy_info legacy = {.struct_size = sizeof legacy};
    gmm_event *shared = NULL;
    gmm_ipc_fd_desc fd_desc = {.struct_size = sizeof fd_desc, .size = 4096};
    void *from_fd = NULL;
    FORKED(gmm_ipc_configure(context, NULL));
    FORKED(gmm_ipc_export_legacy(context, memory, &legacy));
    FORKED(gmm_ipc_import_fd(context, 0, &fd_desc, &from_fd));
    FORKED(gmm_event_create(context, SHARED_EVENT_ON(0), &shared));
    FORKED(gmm_ipc_export_fd(context, memory, GMM_FD_DEFAULT, &file));
    FORKED(gmm_limit_set(context, &scope, GMM_NO_LIMIT));
    FORKED(gmm_context_set_oom_handler(context, NULL, NULL));
    FORKED(gmm_context_set_decommit(context, 5));
    FORKED(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
    FORKED(gmm_stats_query(context, NULL, &statistics));
    FORKED(gmm_snapshot_create(context, NULL, &snapshot_made));
    FORKED(gmm_snapshot_write(snapshot, write_nothing, NULL));
    FORKED(gmm_snapshot_destroy(snapshot));
    FORKED(gmm_trace_begin(context, "/dev/null"));
    FORKED(gmm_trace_end(context));
    FORKED(gmm_trim(context, NULL, NULL));
    gmm_compact_info compacted = {.struct_size = sizeof compacted};
    FORKED(gmm_compact(context, NULL, NULL, &compacted));
    gmm_watcher *watch_made = NULL;
    FORKED(gmm_watch(context, &watch_desc, &watch_made));
    FORKED(gmm_watcher_destroy(watcher));
    gmm_lease *lease_made = NULL;
    gmm_lease_info lease_info = {.struct_size = sizeof lease_info};
    FORKED(gmm_lease_create(context, &lease_desc, &lease_made));
    FORKED(gmm_lease_offer(lease, GMM_TAG_DEFAULT, 1));
    FORKED(gmm_lease_request(lease, NULL, NULL));
    FORKED(gmm_lease_return(lease));
    FORKED(gmm_lease_query(lease, &lease_info));
    FORKED(gmm_lease_destroy(lease));
    gmm_lease_entry_info entry = {.struct_size = sizeof entry};
    FORKED(gmm_lease_list(context, 0, 0, &entry));
    FORKED(gmm_reset(context));
    FORKED(gmm_defer_begin(context));
    FORKED(gmm_defer_end(context));
    FORKED(gmm_context_release(context));
    if (strstr(gmm_last_error_message(), "fork") == NULL) {
      printf("# the message does not speak of fork: %s\n", gmm_last_error_message());
      ++wrong;
    }
    fflush(stdout);
    // Intel's OpenCL waits at exit for queues that were busy at the fork, and their threads are the parent's.
    if (on_sycl) _exit(wrong > 0 ? 3 : 0);
    exit(wrong > 0 ? 3 : 0);  // exit(), not _exit(): no handler of the library may hang or crash
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  OK(gmm_lease_destroy(lease));
  CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", status);
  CHECK_PATTERN(memory, 4096, 5);
  OK(gmm_free(context, memory, stream));
  OK(gmm_heap_destroy(heap));
  OK(gmm_event_destroy(event));
  OK(gmm_snapshot_destroy(snapshot));
}

CASE(a_child_may_open_its_own) {
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(context, &info));
  if (info.backend != GMM_BACKEND_HOST) SKIP("a CUDA driver that was started does not work in a forked child");
  void *memory = NULL;
  MUST(gmm_alloc(context, 100, NULL, &memory));
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    gmm_context *own = NULL;
    void *mine = NULL;
    if (gmm_context_create(NULL, &own) != GMM_OK) _exit(2);
    if (gmm_alloc(own, 1000, NULL, &mine) != GMM_OK) _exit(3);
    if (gmm_fill(own, mine, 1, 1000, GMM_STREAM_DEFAULT) != GMM_OK ||
        gmm_stream_synchronize(own, GMM_STREAM_DEFAULT) != GMM_OK)
      _exit(4);
    if (gmm_free(own, mine, GMM_STREAM_DEFAULT) != GMM_OK) _exit(5);
    if (gmm_context_release(own) != GMM_OK) _exit(6);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
}

// Threads of the parent end, and make and end heaps and contexts, while it forks: a child finds every lock of the
// process usable, whoever held it.
static atomic_int storm_over;
static void *end_with_a_cache(void *heap) {
  void *block = NULL;
  OK(gmm_heap_alloc(heap, 1000, 0, 0, GMM_STREAM_DEFAULT, &block));
  FREE(block);
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
    gmm_heap *heap = NULL;
    gmm_heap_desc desc = {.struct_size = sizeof desc};
    OK(gmm_heap_create(context, &desc, &heap));
    OK(gmm_heap_destroy(heap));
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
static void *live_in_a_child(void *unused) {
  (void)unused;
  gmm_context *own = NULL;
  void *mine = NULL;
  const bool good = gmm_context_create(NULL, &own) == GMM_OK && gmm_tag_push(own, GMM_TAG_DEFAULT) == GMM_OK &&
                    gmm_alloc(own, 1000, NULL, &mine) == GMM_OK && gmm_free(own, mine, GMM_STREAM_DEFAULT) == GMM_OK &&
                    gmm_context_release(own) == GMM_OK && gmm_free(context, mine, 0) == GMM_ERROR_FORKED;
  return good ? context : NULL;
}

CASE(children_find_no_lock_held) {
  enum { FORKS = 300 };
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(context, &info));
  if (info.backend != GMM_BACKEND_HOST) SKIP("a CUDA driver that was started does not work in a forked child");
  // Its allocator's lock stays held in a child if another thread held it at the fork; glibc's malloc frees its own.
  if (CHECK_SANITIZED) SKIP("a sanitizer's own locks are not usable in a forked child");
  char trace[] = "/tmp/gmm-fork-XXXXXX";
  int fd = mkstemp(trace);
  REQUIRE(fd >= 0);
  close(fd);
  gmm_heap *heap = NULL;
  gmm_heap_desc desc = {.struct_size = sizeof desc};
  MUST(gmm_heap_create(context, &desc, &heap));
  atomic_store(&storm_over, 0);
  pthread_t threads[4];
  REQUIRE(pthread_create(&threads[0], NULL, end_threads, heap) == 0);
  REQUIRE(pthread_create(&threads[1], NULL, end_threads, heap) == 0);
  REQUIRE(pthread_create(&threads[2], NULL, make_heaps, NULL) == 0);
  REQUIRE(pthread_create(&threads[3], NULL, make_contexts, trace) == 0);
  fflush(stdout);
  for (unsigned i = 0; i < FORKS && atomic_load(&check_state.failures) == 0; ++i) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);  // of a child that hangs
      if (live_in_a_child(NULL) == NULL) _exit(2);
      pthread_t thread;
      void *good = NULL;
      if (pthread_create(&thread, NULL, live_in_a_child, NULL) != 0 || pthread_join(thread, &good) != 0) _exit(3);
      _exit(good == NULL ? 4 : 0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
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
