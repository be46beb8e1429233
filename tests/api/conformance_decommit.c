// SPDX-License-Identifier: Apache-2.0
// gmm_context_set_decommit(): idle memory goes back by itself. The ages are short and the deadlines are long. A slow
// machine thus makes a case slow and not wrong.
#include <dirent.h>
#include <sys/resource.h>

#include "../support/gmm_test.h"

static unsigned decommit_threads(void) {
  unsigned count = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "r");
    if (file == NULL) continue;
    if (fgets(name, sizeof name, file) != NULL && strcmp(name, "gmm decommit\n") == 0) ++count;
    fclose(file);
  }
  if (tasks != NULL) closedir(tasks);
  return count;
}
// The thread names itself, and the system may show one for a moment that has been joined.
#define SOON_THREADS(wanted) SOON(decommit_threads() == (wanted))
#define SOON_EMPTY() SOON(stats().reserved_bytes == 0)
static uint64_t age(void) { return context_info().decommit_after_ms; }
static gmm_context *open_with(uint64_t milliseconds) { return OPEN(.decommit_after_ms = milliseconds); }

static int decommit_without_a_thread(void *unused) {
  (void)unused;
  if (gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_HOST), &context) != GMM_OK) return 1;
  struct rlimit all = {0}, none = {0};
  getrlimit(RLIMIT_AS, &all);
  none.rlim_max = all.rlim_max;
  none.rlim_cur = 4096;  // not even a stack
  setrlimit(RLIMIT_AS, &none);
  const gmm_result result = gmm_context_set_decommit(context, 5);
  setrlimit(RLIMIT_AS, &all);
  if (result != GMM_ERROR_SYSTEM || gmm_last_native_code() == 0 || decommit_threads() != 0) return 2;
  if (age() != GMM_DECOMMIT_NEVER) return 3;
  if (gmm_context_set_decommit(context, 5) != GMM_OK) return 4;  // a second try works
  return gmm_context_release(context) == GMM_OK ? 0 : 5;
}
// The first case: the C library keeps the stacks of ended threads for later ones.
CASE(without_a_thread_it_says_so) {
  if (CHECK_SANITIZED) SKIP("a sanitizer needs more addresses than the test leaves");
  CHECK_EQUAL(in_child(decommit_without_a_thread, NULL), 0);
}

CASE(nothing_happens_unasked) {
  CHECK_EQUAL(age(), GMM_DECOMMIT_NEVER);
  FREE(ALLOC(8 * MIB));
  sleep_ms(50);
  CHECK(stats().reserved_bytes >= 8 * MIB);
}

// `wanted` of all threads that give memory back.
static void check_age(uint64_t expected, unsigned wanted) {
  CHECK_EQUAL(age(), expected);
  SOON_THREADS(wanted);
}
CASE(the_age_may_be_set_and_taken_back) {
  static const uint64_t ages[][2] = {
      {GMM_DECOMMIT_NEVER, 0}, {3600000, 1}, {5000000, 1}, {GMM_DECOMMIT_DEFAULT, 0}, {3600000, 1}};
  for (unsigned i = 0; i < sizeof ages / sizeof *ages; ++i) {
    OK(gmm_context_set_decommit(context, ages[i][0]));
    check_age(ages[i][1] != 0 ? ages[i][0] : GMM_DECOMMIT_NEVER, (unsigned)ages[i][1]);
  }
  RESULT(gmm_context_set_decommit(context, (uint64_t)1 << 63), GMM_ERROR_INVALID_VALUE);
  gmm_context *other = open_with(3600000);  // each context has its own
  check_age(3600000, 2);
  OK(gmm_context_release(other));
  SOON_THREADS(1);
}

CASE(the_environment_gives_the_default) {
  setenv("GMM_DECOMMIT_AFTER_MS", "3600000", 1);
  gmm_context *before = context;
  context = open_with(GMM_DECOMMIT_DEFAULT);
  check_age(3600000, 1);
  OK(gmm_context_release(context));
  context = open_with(GMM_DECOMMIT_NEVER);
  check_age(GMM_DECOMMIT_NEVER, 0);
  OK(gmm_context_set_decommit(context, GMM_DECOMMIT_DEFAULT));
  CHECK_EQUAL(age(), 3600000);
  OK(gmm_context_release(context));
  setenv("GMM_DECOMMIT_AFTER_MS", "10 s", 1);
  RESULT(gmm_context_create(DESC(context_desc), &context), GMM_ERROR_INVALID_VALUE);
  CHECK(message_has("GMM_DECOMMIT_AFTER_MS=10 s"));
  unsetenv("GMM_DECOMMIT_AFTER_MS");
  context = before;
}

static struct { atomic_int filled, go; } idle;
static void *idle_thread(void *unused) {
  (void)unused;
  void *blocks[100];
  for (unsigned i = 0; i < 100; ++i) blocks[i] = ALLOC(1000 + i * 5000);
  FREE_ALL(blocks, 100);
  atomic_store(&idle.filled, 1);
  while (!atomic_load(&idle.go)) sleep_ms(1);
  void *block = ALLOC(500);  // its cache was emptied under it
  write_pattern(block, 500, 3, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, 500, 3);
  FREE(block);
  return NULL;
}
CASE_OF_KINDS(idle_memory_goes_by_itself, ALL_KINDS) {
  atomic_store(&idle.filled, 0);
  atomic_store(&idle.go, 0);
  void *kept = FILLED(100000, 9);  // first: among the thread's blocks it might lie in two extents
  const pthread_t thread = start_thread(idle_thread, NULL);
  FREE(ALLOC(40 * MIB));
  while (!atomic_load(&idle.filled)) sleep_ms(1);
  CHECK(stats().reserved_bytes >= 40 * MIB);
  OK(gmm_context_set_decommit(context, 10));
  // All but the extent that the block lies in.
  SOON(stats().extents == 1);
  CHECK_PATTERN(kept, 100000, 9);
  FREE(kept);
  SOON_EMPTY();
  atomic_store(&idle.go, 1);
  pthread_join(thread, NULL);
  SOON_EMPTY();
}

CASE_OF_KINDS(a_busy_stream_keeps_its_memory, ALL_KINDS) {
  gmm_stream stream = open_stream();
  void *block = ALLOC_STREAM(100 * MIB, stream);  // not kept by a thread's cache
  static gate g;
  gate_close(&g, stream, 100);
  OK(gmm_free(context, block, stream));
  OK(gmm_context_set_decommit(context, 2));
  sleep_ms(60);
  CHECK(stats().reserved_bytes >= 100 * MIB);
  CHECK_EQUAL(atomic_load(&g.passed), 0);
  atomic_store(&g.open, 1);
  OK(gmm_stream_synchronize(context, stream));
  SOON_EMPTY();
}

CASE(contexts_end_while_it_works) {
  gmm_context *before = context;
  for (unsigned i = 0; i < 30; ++i) {
    context = open_with(1);
    void *blocks[20];
    for (unsigned j = 0; j < 20; ++j) blocks[j] = ALLOC(1 * MIB + j * 300000);
    for (unsigned j = 0; j < 20; j += 2) FREE(blocks[j]);
    sleep_ms(i % 5);
    OK(gmm_context_release(context));  // live blocks too
    // A driver may start a thread of its own inside a call, which inherits the caller's name.
    if (on_host_backend()) SOON_THREADS(0);
  }
  context = before;
}

int main(void) { return run_cases(); }
