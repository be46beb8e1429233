// SPDX-License-Identifier: Apache-2.0
// Traces of stats.h.
#include "../support/gmm_test.h"

// Reads a trace back: every f has its a, no id twice, and the sums are right.
static void check_trace(const char *path, unsigned allocations, unsigned frees, uint64_t bytes) {
  FILE *file = fopen(path, "r");
  REQUIRE(file != NULL);
  static uint8_t live[100000];
  memset(live, 0, sizeof live);
  unsigned a = 0, f = 0;
  uint64_t sum = 0;
  char line[256];
  while (fgets(line, sizeof line, file) != NULL) {
    unsigned long long id = 0, size = 0, stream = 0;
    if (line[0] == '#') continue;
    CHECK(line[strlen(line) - 1] == '\n');
    if (sscanf(line, "a %llu %llu %llu", &id, &size, &stream) == 3 && id < sizeof live) {
      CHECK_MESSAGE(live[id] == 0, "id %llu is allocated twice", id);
      live[id] = 1;
      sum += size;
      ++a;
    } else if (sscanf(line, "f %llu %llu", &id, &stream) == 2 && id < sizeof live) {
      CHECK_MESSAGE(live[id] == 1, "id %llu is freed but not live", id);
      live[id] = 0;
      ++f;
    } else {
      CHECK_MESSAGE(false, "not a line of a trace: %s", line);
    }
  }
  fclose(file);
  CHECK_EQUAL(a, allocations);
  CHECK_EQUAL(f, frees);
  CHECK_EQUAL(sum, bytes);
}

static void *traced_thread(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 100; ++i) {
    void *block = ALLOC(1000);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  return NULL;
}

static void traces_can_be_replayed(void) {
  char path[] = "/tmp/gmm-trace-XXXXXX";
  int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  close(fd);
  void *before = ALLOC(5000);  // not in the trace, and neither is its free
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  MUST(gmm_trace_begin(context, path));
  RESULT(gmm_trace_begin(context, path), GMM_ERROR_BUSY);
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, device, &stream));
  void *blocks[200];
  uint64_t bytes = 0;
  for (unsigned i = 0; i < 200; ++i) {
    blocks[i] = ALLOC_STREAM(100 + i * 501, i % 3 ? stream : GMM_STREAM_DEFAULT);
    bytes += 100 + i * 501;
  }
  for (unsigned i = 0; i < 150; ++i) OK(gmm_free(context, blocks[i], i % 3 ? stream : GMM_STREAM_DEFAULT));
  pthread_t threads[4];
  for (unsigned i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, traced_thread, NULL);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  check_trace(path, 600, 550, bytes + 400000);
  for (unsigned i = 150; i < 200; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  check_trace(path, 600, 550, bytes + 400000);  // nothing came after the end
  RESULT(gmm_trace_begin(context, "/no/such/directory/trace"), GMM_ERROR_IO);
  CHECK(strstr(gmm_last_error_message(), "/no/such/directory/trace") != NULL);
  MUST(gmm_trace_begin(context, path));  // a new trace starts afresh
  void *one = ALLOC(64);
  OK(gmm_free(context, one, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  check_trace(path, 1, 1, 64);
  OK(gmm_stream_destroy(context, stream));
  unlink(path);
}

static void a_full_disk_is_reported(void) {
  if (access("/dev/full", W_OK) != 0) SKIP("no /dev/full here");
  gmm_result result = gmm_trace_begin(context, "/dev/full");
  CHECK(result == GMM_OK || result == GMM_ERROR_IO);
  if (result != GMM_OK) return;
  for (unsigned i = 0; i < 20000; ++i) {
    void *block = ALLOC(1000);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  RESULT(gmm_trace_end(context), GMM_ERROR_IO);
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
}

static void the_environment_starts_a_trace(void) {
  char path[] = "/tmp/gmm-trace-XXXXXX";
  int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  close(fd);
  setenv("GMM_TRACE", path, 1);
  gmm_context *other = open_context(1);
  unsetenv("GMM_TRACE");
  void *block = NULL;
  OK(gmm_alloc(other, 3000, NULL, &block));
  OK(gmm_free(other, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  check_trace(path, 1, 1, 3000);
  unlink(path);
}

int main(void) {
  KINDS(traces_can_be_replayed, ALL_KINDS);
  PLAIN(a_full_disk_is_reported);
  PLAIN(the_environment_starts_a_trace);
  return check_finish();
}
