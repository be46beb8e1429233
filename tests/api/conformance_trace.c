// SPDX-License-Identifier: Apache-2.0
// Traces of stats.h.
#include "../support/gmm_test.h"
#include "../support/second_process.h"
#include "cli/trace.h"

static char path[64];
static struct trace file;

static void new_path(void) {
  snprintf(path, sizeof path, "/tmp/gmm-trace-XXXXXX");
  int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  close(fd);
}

// Reads the file: no address lives twice, and `unknown` frees are of blocks from before the trace.
static void read_trace(unsigned allocations, unsigned frees, uint64_t bytes, unsigned unknown) {
  unsigned a = 0, f = 0;
  uint64_t sum = 0;
  trace_free(&file);
  CHECK(trace_read(path, &file));
  for (size_t i = 0; i < file.count; ++i) {
    a += file.events[i].type == TRACE_ALLOC;
    f += file.events[i].type == TRACE_FREE;
    if (file.events[i].type == TRACE_ALLOC) sum += file.events[i].size;
  }
  CHECK_EQUAL(a, allocations);
  CHECK_EQUAL(f + file.unknown, frees);
  CHECK_EQUAL(sum, bytes);
  CHECK_EQUAL(file.unknown, unknown);
}

static unsigned events_of(uint32_t number) {
  unsigned count = 0;
  for (size_t i = 0; i < file.count; ++i) count += file.events[i].type == number;
  return count;
}

static void *traced_thread(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 100; ++i) {
    void *block = ALLOC(1000);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  return NULL;
}

static void *free_all(void *blocks) {
  for (unsigned i = 0; i < 150; ++i) OK(gmm_free(context, ((void **)blocks)[i], GMM_STREAM_DEFAULT));
  return NULL;
}

static void traces_hold_every_event(void) {
  new_path();
  void *before = ALLOC(5000);  // not in the trace, but its free
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  MUST(gmm_trace_begin(context, path));
  RESULT(gmm_trace_begin(context, path), GMM_ERROR_BUSY);
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  void *blocks[200];
  uint64_t bytes = 0;
  for (unsigned i = 0; i < 200; ++i) {
    blocks[i] = ALLOC_STREAM(100 + i * 501, i % 3 ? stream : GMM_STREAM_DEFAULT);
    bytes += 100 + i * 501;
  }
  OK(gmm_record_use(context, blocks[199], stream));
  pthread_t threads[4];
  pthread_create(&threads[0], NULL, free_all, blocks);
  pthread_join(threads[0], NULL);
  for (unsigned i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, traced_thread, NULL);
  for (unsigned i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
  RESULT(gmm_free(context, before, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);  // no event
  uint64_t trimmed = 0;
  OK(gmm_trim(context, NULL, &trimmed));
  OK(gmm_trace_end(context));
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  read_trace(600, 551, bytes + 400000, 1);
  CHECK_EQUAL(file.ended, 1);
  CHECK_EQUAL(file.process, getpid());
  CHECK_EQUAL(events_of(TRACE_USE), 1);
  CHECK_EQUAL(events_of(TRACE_TRIM), 1);
  CHECK_EQUAL(events_of(TRACE_THREAD_ENDED), 5);
  unsigned seen = 0;
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    if (event->type == TRACE_TRIM) CHECK_EQUAL(event->size, trimmed);
    if (event->type == TRACE_USE) CHECK_EQUAL(event->address, (uintptr_t)blocks[199]);
    if (event->type != TRACE_ALLOC || event->thread != file.events[0].thread) continue;
    if (seen < 200) {
      CHECK_EQUAL(event->address, (uintptr_t)blocks[seen]);
      CHECK_EQUAL(file.streams[event->stream], seen % 3 ? (uintptr_t)stream : 0);
      CHECK_EQUAL(event->kind, kind);
      CHECK_EQUAL(event->device, device);
    }
    ++seen;
  }
  for (unsigned i = 150; i < 200; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  read_trace(600, 551, bytes + 400000, 1);  // nothing came after the end
  RESULT(gmm_trace_begin(context, "/no/such/directory/trace"), GMM_ERROR_IO);
  CHECK(strstr(gmm_last_error_message(), "/no/such/directory/trace") != NULL);
  MUST(gmm_trace_begin(context, path));  // a new trace starts afresh
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind, .device = device};
  gmm_heap *heap = NULL;
  MUST(gmm_heap_create(context, &desc, &heap));
  void *one = NULL;
  OK(gmm_heap_alloc(heap, 64, 0, 0, GMM_STREAM_DEFAULT, &one));
  OK(gmm_free(context, one, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
  one = ALLOC(4096);
  OK(gmm_reset(context));
  OK(gmm_trace_end(context));
  read_trace(2, 2, 64 + 4096, 0);  // the reset frees a block
  CHECK_EQUAL(events_of(TRACE_HEAP_CREATED), 1);
  CHECK_EQUAL(events_of(TRACE_HEAP_DESTROYED), 1);
  CHECK_EQUAL(events_of(TRACE_RESET), 1);
  OK(gmm_stream_destroy(context, stream));
  unlink(path);
}

static void pauses_are_in_it(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) SKIP("the device cannot pause");
  new_path();
  kind = GMM_KIND_VMM;
  gmm_tag tag = make_tag("traced", GMM_CONTENTS_DROP);
  MUST(gmm_trace_begin(context, path));
  void *block = ALLOC_TAG(3 * MIB, tag);
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tag_count = 1, .tags = &tag};
  uint64_t went = 0, came = 0;
  OK(gmm_pause(context, &desc, &went));
  OK(gmm_resume(context, &desc, &came));
  OK(gmm_pause(context, &desc, &went));
  OK(gmm_resume_range(context, block, 3 * MIB, &came));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  read_trace(1, 1, 3 * MIB, 0);
  unsigned seen = 0;
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    if (event->type != TRACE_PAUSE && event->type != TRACE_RESUME) continue;
    ++seen;
    CHECK_EQUAL(event->size, tag);
    CHECK_EQUAL(event->value, event->type == TRACE_PAUSE ? went : came);
  }
  CHECK_EQUAL(seen, 4);
  unlink(path);
}

static void a_compaction_is_in_it(void) {
  if (!has_kind(GMM_KIND_VMM)) SKIP("the device has no VMM memory");
  new_path();
  gmm_heap *heap = NULL;
  const gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = device};
  gmm_compact_desc compact = {.struct_size = sizeof compact, .heap = NULL};
  gmm_compact_info info = {.struct_size = sizeof info}, again = info;
  MUST(gmm_heap_create(context, &desc, &heap));
  MUST(gmm_heap_reserve(heap, 16 * MIB));
  OK(gmm_heap_reserve(heap, 0));
  MUST(gmm_trace_begin(context, path));
  void *block = ALLOC(100);
  OK(gmm_compact(context, NULL, &compact, &info));
  RESULT(gmm_compact(context, NULL, &compact, &again), GMM_UNCHANGED);  // no event
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  read_trace(1, 1, 100, 0);
  CHECK_EQUAL(events_of(TRACE_COMPACT), 1);
  for (size_t i = 0; i < file.count; ++i) {
    if (file.events[i].type != TRACE_COMPACT) continue;
    CHECK_EQUAL(file.events[i].size, info.moved_bytes);
    CHECK_EQUAL(file.events[i].value, info.released_bytes);
  }
  OK(gmm_heap_destroy(heap));
  unlink(path);
}

// A tag's name is that of its allocations, a block's name stands where it was given. An alloc has its alignment.
static void names_are_in_it(void) {
  new_path();
  const char *long_name = "a name of 63 bytes, which is as long as the name of a tag can b";
  const gmm_tag tag = make_tag(long_name, GMM_CONTENTS_DROP);
  MUST(gmm_trace_begin(context, path));
  char *one = ALLOC_TAG(5000, tag);
  gmm_alloc_desc aligned = alloc_desc();
  aligned.alignment = 65536;
  aligned.flags = GMM_ALLOC_DEDICATED;
  void *two = NULL;
  OK(gmm_alloc(context, 5000, &aligned, &two));
  OK(gmm_name(context, one + 17, "short"));
  OK(gmm_name(context, two, long_name));
  OK(gmm_name(context, one, NULL));
  RESULT(gmm_name(context, two, ""), GMM_ERROR_INVALID_VALUE);
  OK(gmm_free(context, one, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, two, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  read_trace(2, 2, 10000, 0);
  const struct {
    uint32_t number;
    const void *address;
    const char *name;
  } expected[] = {{TRACE_ALLOC, one, long_name},
                  {TRACE_ALLOC, two, "default"},
                  {TRACE_BLOCK_NAME, one, "short"},
                  {TRACE_BLOCK_NAME, two, long_name},
                  {TRACE_BLOCK_NAME, one, ""}};
  unsigned seen = 0;
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    if (event->type != TRACE_ALLOC && event->type != TRACE_BLOCK_NAME) continue;
    REQUIRE(seen < 5);
    CHECK_EQUAL(event->type, expected[seen].number);
    CHECK_EQUAL(event->address, (uintptr_t)expected[seen].address);
    CHECK_EQUAL(event->log2_alignment, seen == 1 ? 16 : 0);
    const char *name = event->type == TRACE_ALLOC ? file.tags[event->tag].name : file.names[event->value];
    CHECK_MESSAGE(strcmp(name, expected[seen].name) == 0, "name %u: \"%s\"", seen, name);
    ++seen;
  }
  CHECK_EQUAL(seen, 5);
  unlink(path);
}

static void a_full_disk_is_reported(void) {
  if (access("/dev/full", W_OK) != 0) SKIP("no /dev/full here");
  RESULT(gmm_trace_begin(context, "/dev/full"), GMM_ERROR_IO);
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
}

// The environment names the file; "%p" is the process.
static void the_environment_starts_a_trace(void) {
  new_path();
  setenv("GMM_TRACE", path, 1);
  gmm_context *other = open_context(1);
  gmm_context *third = open_context(1);  // cannot have the same file, and says so in the log
  void *block = NULL;
  OK(gmm_alloc(third, 100, NULL, &block));
  OK(gmm_context_release(third));
  OK(gmm_alloc(other, 3000, NULL, &block));
  OK(gmm_free(other, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  read_trace(1, 1, 3000, 0);
  unlink(path);
  setenv("GMM_TRACE", "/tmp/gmm-trace-%p.end", 1);
  other = open_context(1);
  unsetenv("GMM_TRACE");
  OK(gmm_alloc(other, 200, NULL, &block));
  OK(gmm_context_release(other));
  snprintf(path, sizeof path, "/tmp/gmm-trace-%d.end", (int)getpid());
  read_trace(1, 0, 200, 0);
  unlink(path);
}

// A child inherits the file, and may even flush everything: events are written once, by the parent. The child
// ends without exit(), at which a leak checker would find the parent's memory.
static void a_child_writes_nothing(void) {
  new_path();
  MUST(gmm_trace_begin(context, path));
  void *block = ALLOC(100);
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int wrong = gmm_free(context, block, GMM_STREAM_DEFAULT) != GMM_ERROR_FORKED;
    wrong += gmm_trace_end(context) != GMM_ERROR_FORKED;
    fflush(NULL);
    _exit(wrong);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  read_trace(1, 1, 100, 0);
  unlink(path);
}

enum { PAIRS = 20000 };

static int second(const char *to) {
  gmm_context *own = NULL;
  void *block = NULL;
  if (gmm_context_create(NULL, &own) != GMM_OK || gmm_trace_begin(own, to) != GMM_OK) return 2;
  for (unsigned i = 0; i < PAIRS; ++i)
    if (gmm_alloc(own, 500, NULL, &block) != GMM_OK || gmm_free(own, block, GMM_STREAM_DEFAULT) != GMM_OK) return 3;
  char never = 0;
  return send_bytes(1, "x", 1) && receive_bytes(0, &never, 1) ? 0 : 4;
}

static void a_killed_program_leaves_a_readable_file(void) {
  new_path();
  second_process process;
  const char *words[] = {path};
  char done = 0;
  REQUIRE(second_start(&process, words, 1));
  CHECK(receive_bytes(process.from, &done, 1));
  second_kill(&process);
  trace_free(&file);
  CHECK(trace_read(path, &file));
  CHECK_EQUAL(file.ended, 0);
  CHECK_EQUAL(events_of(TRACE_ALLOC), PAIRS);
  CHECK_EQUAL(events_of(TRACE_FREE), PAIRS);
  unlink(path);
}

// Ends without a word to gmm: by exit() beside threads that record, by _exit(), or by a signal.
static atomic_uint pairs_recorded;
static void *record_for_ever(void *own) {
  void *block = NULL;
  for (;;) {
    if (gmm_alloc(own, 500, NULL, &block) != GMM_OK || gmm_free(own, block, GMM_STREAM_DEFAULT) != GMM_OK) abort();
    atomic_fetch_add(&pairs_recorded, 1);
  }
  return NULL;
}
static int end_simply(const char *to, const char *how) {
  setenv("GMM_TRACE", to, 1);
  gmm_context *own = NULL;
  void *block = NULL;
  if (gmm_context_create(NULL, &own) != GMM_OK) return 2;
  if (strcmp(how, "threads") == 0) {
    pthread_t threads[3];
    for (unsigned i = 0; i < 3; ++i)
      if (pthread_create(&threads[i], NULL, record_for_ever, own) != 0) return 3;
    while (atomic_load(&pairs_recorded) < PAIRS) sleep_ms(1);
    exit(0);
  }
  for (unsigned i = 0; i < 10; ++i)
    if (gmm_alloc(own, 500, NULL, &block) != GMM_OK || gmm_free(own, block, GMM_STREAM_DEFAULT) != GMM_OK) return 4;
  if (strcmp(how, "signal") == 0) kill(getpid(), SIGKILL);
  if (strcmp(how, "_exit") == 0) _exit(0);
  return 0;  // from main(): exit()
}

static void a_program_that_simply_ends_loses_nothing(void) {
  static const char *const ways[] = {"exit", "_exit", "signal", "threads"};
  for (unsigned i = 0; i < 4; ++i) {
    new_path();
    second_process process;
    const char *words[] = {path, ways[i]};
    REQUIRE(second_start(&process, words, 2));
    char never = 0;
    CHECK(!receive_bytes(process.from, &never, 1));
    second_kill(&process);
    trace_free(&file);
    CHECK_MESSAGE(trace_read(path, &file), "%s", ways[i]);
    CHECK_EQUAL(file.ended, 0);
    const unsigned pairs = events_of(TRACE_FREE);
    CHECK_MESSAGE(i < 3 ? pairs == 10 : pairs >= PAIRS, "%s: %u pairs", ways[i], pairs);
    CHECK(events_of(TRACE_ALLOC) >= pairs && events_of(TRACE_ALLOC) <= pairs + 3);
    unlink(path);
  }
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--second") == 0) return second(argv[2]);
  if (argc == 4 && strcmp(argv[1], "--second") == 0) return end_simply(argv[2], argv[3]);
  KINDS(traces_hold_every_event, ALL_KINDS);
  PLAIN(pauses_are_in_it);
  PLAIN(a_compaction_is_in_it);
  PLAIN(names_are_in_it);
  PLAIN(a_full_disk_is_reported);
  PLAIN(the_environment_starts_a_trace);
  PLAIN(a_child_writes_nothing);
  PLAIN(a_killed_program_leaves_a_readable_file);
  PLAIN(a_program_that_simply_ends_loses_nothing);
  return finish_clean();
}
