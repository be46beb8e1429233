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
  for (unsigned i = 0; i < 100; ++i) FREE(ALLOC(1000));
  return NULL;
}

static void *free_all(void *blocks) {
  FREE_ALL(blocks, 150);
  return NULL;
}

CASE_OF_KINDS(traces_hold_every_event, ALL_KINDS) {
  new_path();
  void *before = ALLOC(5000);
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  MUST(gmm_trace_begin(context, path, NULL));
  RESULT(gmm_trace_begin(context, path, NULL), GMM_ERROR_BUSY);
  gmm_stream stream = 0;
  stream = open_stream();
  void *blocks[200];
  uint64_t bytes = 0;
  for (unsigned i = 0; i < 200; ++i) {
    blocks[i] = ALLOC_STREAM(100 + i * 501, i % 3 ? stream : GMM_STREAM_DEFAULT);
    bytes += 100 + i * 501;
  }
  OK(gmm_record_use(context, blocks[199], stream));
  run_thread(free_all, blocks);
  run_threads(4, traced_thread);
  FREE(before);
  RESULT(gmm_free(context, before, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);  // no event
  uint64_t trimmed = 0;
  OK(gmm_trim(context, NULL, &trimmed));
  OK(gmm_trace_end(context));
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
  read_trace(601, 551, bytes + 405000, 0);
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
    if (event->type != TRACE_ALLOC || event->was_live || event->thread != file.events[0].thread) continue;
    if (seen < 200) {
      CHECK_EQUAL(event->address, (uintptr_t)blocks[seen]);
      CHECK_EQUAL(file.streams[event->stream], seen % 3 ? (uintptr_t)stream : 0);
      CHECK_EQUAL(event->kind, kind);
      CHECK_EQUAL(event->device, device);
    }
    ++seen;
  }
  FREE_ALL(blocks + 150, 50);
  read_trace(601, 551, bytes + 405000, 0);  // nothing came after the end
  RESULT(gmm_trace_begin(context, "/no/such/directory/trace", NULL), GMM_ERROR_IO);
  CHECK(strstr(gmm_last_error_message(), "/no/such/directory/trace") != NULL);
  MUST(gmm_trace_begin(context, path, NULL));  // a new trace starts afresh
  gmm_heap *heap = HEAP();
  FREE(take_of(heap, 64));
  OK(gmm_heap_destroy(heap));
  ALLOC(4096);
  OK(gmm_reset(context));
  OK(gmm_trace_end(context));
  read_trace(2, 2, 64 + 4096, 0);  // the reset frees a block
  CHECK_EQUAL(events_of(TRACE_HEAP_CREATED), 1);
  CHECK_EQUAL(events_of(TRACE_HEAP_DESTROYED), 1);
  CHECK_EQUAL(events_of(TRACE_RESET), 1);
  unlink(path);
}

// A trace that ends at once is a snapshot.
CASE_OF_KINDS(live_blocks_begin_it, ALL_KINDS) {
  new_path();
  const gmm_tag tag = make_tag("before", GMM_CONTENTS_DROP);
  const gmm_pause_desc desc = one_tag(&tag);
  void *blocks[] = {ALLOC_TAG(3 * MIB, tag), ALLOC_TAG(1000, tag)};
  FREE(ALLOC_TAG(2000, tag));
  OK(gmm_name(context, blocks[1], "small"));
  const bool pauses = kind == GMM_KIND_VMM && (device_info.capabilities & GMM_DEVICE_CAN_PAUSE) != 0;
  if (pauses) OK(gmm_pause(context, &desc, NULL));
  MUST(gmm_trace_begin(context, path, NULL));
  OK(gmm_trace_end(context));
  read_trace(2, 0, 3 * MIB + 1000, 0);
  CHECK_EQUAL(events_of(TRACE_BLOCK_NAME), 1);
  CHECK_EQUAL(events_of(TRACE_HELD), 1);
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    CHECK_EQUAL(event->time, 0);
    if (event->type == TRACE_HELD) CHECK_EQUAL(event->value != 0, pauses);
    if (event->type == TRACE_BLOCK_NAME) CHECK(strcmp(file.names[event->value], "small") == 0);
    if (event->type != TRACE_ALLOC) continue;
    CHECK_EQUAL(event->was_live, 1);
    CHECK_EQUAL(event->address, (uintptr_t)blocks[event->size == 1000]);
    CHECK_EQUAL(event->kind, kind);
    CHECK_EQUAL(event->device, device);
    CHECK_EQUAL(file.tags[event->tag].number, tag);
  }
  if (pauses) OK(gmm_resume(context, &desc, NULL));
  FREE_ALL(blocks, 2);
  unlink(path);
}

enum { CHURNERS = 4, BLOCKS_EACH = 8 };
static void *churned[CHURNERS * BLOCKS_EACH];
static gmm_tag churned_tags[2];
static atomic_bool stop_churning;

// The first threads change tags, which takes them past the fast paths.
static void *churn(void *number) {
  void **blocks = number;
  const bool changes = blocks < &churned[CHURNERS * BLOCKS_EACH / 2];
  for (unsigned i = 0; i < BLOCKS_EACH || !stop_churning; ++i) {
    void **block = &blocks[i % BLOCKS_EACH];
    if (*block != NULL) FREE(*block);
    *block = ALLOC_TAG(1000, churned_tags[changes ? i % 2 : 0]);
  }
  return NULL;
}

// A trace that begins beside threads has each block once, and no other one.
CASE(it_begins_beside_threads) {
  new_path();
  for (unsigned i = 0; i < 2; ++i) churned_tags[i] = make_tag(i == 0 ? "one" : "two", GMM_CONTENTS_DROP);
  memset(churned, 0, sizeof churned);
  for (unsigned round = 0; round < 10; ++round) {
    pthread_t threads[CHURNERS];
    stop_churning = false;
    for (unsigned i = 0; i < CHURNERS; ++i) threads[i] = start_thread(churn, &churned[i * BLOCKS_EACH]);
    usleep(2000);
    MUST(gmm_trace_begin(context, path, NULL));
    usleep(2000);
    stop_churning = true;
    for (unsigned i = 0; i < CHURNERS; ++i) pthread_join(threads[i], NULL);
    OK(gmm_trace_end(context));
    trace_free(&file);
    REQUIRE(trace_read(path, &file));
    CHECK_EQUAL(events_of(TRACE_ALLOC) - events_of(TRACE_FREE), CHURNERS * BLOCKS_EACH);
    for (unsigned i = 0; i < CHURNERS * BLOCKS_EACH; ++i) {
      size_t last = file.count;
      while (last > 0 &&
             (file.events[last - 1].block == TRACE_NO_BLOCK || file.events[last - 1].address != (uintptr_t)churned[i]))
        --last;
      CHECK(last > 0 && file.events[last - 1].type == TRACE_ALLOC);
    }
  }
  FREE_ALL(churned, CHURNERS * BLOCKS_EACH);
  unlink(path);
}

VMM_CASE(operations_are_in_it) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) SKIP("the device cannot pause");
  new_path();
  const gmm_tag tag = make_tag("traced", GMM_CONTENTS_DROP);
  const gmm_pause_desc desc = one_tag(&tag);
  gmm_compact_info info = {.struct_size = sizeof info}, again = info;
  uint64_t went = 0, came = 0;
  gmm_heap *heap = HEAP();
  MUST(gmm_heap_reserve(heap, 16 * MIB));
  OK(gmm_heap_reserve(heap, 0));
  MUST(gmm_trace_begin(context, path, NULL));
  void *block = ALLOC_TAG(3 * MIB, tag);
  OK(gmm_compact(context, NULL, NULL, &info));
  RESULT(gmm_compact(context, NULL, NULL, &again), GMM_UNCHANGED);  // no event
  OK(gmm_pause(context, &desc, &went));
  OK(gmm_resume(context, &desc, &came));
  OK(gmm_pause(context, &desc, &went));
  OK(gmm_resume_range(context, block, 3 * MIB, &came));
  FREE(block);
  OK(gmm_trace_end(context));
  read_trace(1, 1, 3 * MIB, 0);
  CHECK_EQUAL(events_of(TRACE_PAUSE), 2);
  CHECK_EQUAL(events_of(TRACE_RESUME), 2);
  CHECK_EQUAL(events_of(TRACE_COMPACT), 1);
  uint64_t held = 0, paused = 0;
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    const bool compacts = event->type == TRACE_COMPACT, pauses = event->type == TRACE_PAUSE;
    if (event->type == TRACE_HELD && file.tags[event->tag].number == tag) {
      held = event->size;
      paused = event->value;
      CHECK(held + paused >= 3 * MIB);
    }
    if (!compacts && !pauses && event->type != TRACE_RESUME) continue;
    CHECK_EQUAL(event->size, compacts ? info.moved_bytes : pauses ? went : came);
    CHECK(event->began <= event->time);
    if (compacts)
      CHECK_EQUAL(event->value, info.released_bytes);
    else
      CHECK_EQUAL(file.tags[event->tag].number, tag);
  }
  CHECK(held >= 3 * MIB);  // after the last resume
  CHECK_EQUAL(paused, 0);
  OK(gmm_heap_destroy(heap));
  unlink(path);
}

// A failure has the bytes, the place and the message.
CASE(failures_are_in_it) {
  new_path();
  const gmm_tag tag = make_tag("small", GMM_CONTENTS_DROP);
  OK(gmm_limit_set(context, DESC(scope_desc, .flags = GMM_SCOPE_TAG, .tag = tag), 4 * MIB));
  MUST(gmm_trace_begin(context, path, NULL));
  FREE(ALLOC_TAG(MIB, tag));
  void *block = NULL;
  RESULT(gmm_alloc(context, 8 * MIB, HERE(.tag = tag), &block), GMM_ERROR_LIMIT_EXCEEDED);
  char message[TRACE_TEXT_BYTES];
  snprintf(message, sizeof message, "%s", gmm_last_error_message());
  OK(gmm_trace_end(context));
  read_trace(1, 1, MIB, 0);
  CHECK_EQUAL(events_of(TRACE_FAILED), 1);
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    if (event->type != TRACE_FAILED) continue;
    CHECK_EQUAL(event->result, GMM_ERROR_LIMIT_EXCEEDED);
    CHECK_EQUAL(event->size, 8 * MIB);
    CHECK_EQUAL(event->kind, kind);
    CHECK_EQUAL(event->device, device);
    CHECK_EQUAL(file.tags[event->tag].number, tag);
    CHECK(strcmp(file.texts[event->value], message) == 0);
  }
  unlink(path);
}

static __attribute__((noinline)) void at_one_place(uint64_t size) { FREE(ALLOC(size)); }
static __attribute__((noinline)) void at_another(uint64_t size) { FREE(ALLOC(size)); }
static void add_frames(gmm_frame_fn add, void *to) {
  add(to, "inner", "script.py", 7);
  add(to, "outer", "script.py", 70);
}

// Calls from one place have one stack, of the program's own calls and of an interpreter's.
CASE(stacks_are_in_it) {
  new_path();
  OK(gmm_limit_set(context, NULL, 64 * MIB));
  OK(gmm_trace_set_frames(add_frames));
  MUST(gmm_trace_begin(context, path, DESC(trace_desc, .stack_bytes = 1)));
  for (volatile unsigned i = 0; i < 3; ++i) at_one_place(1000);  // a loop, and no copies of its call
  at_another(1);
  void *block = NULL;
  RESULT(gmm_alloc(context, 128 * MIB, HERE(), &block), GMM_ERROR_LIMIT_EXCEEDED);
  OK(gmm_trace_end(context));
  OK(gmm_trace_set_frames(NULL));
  OK(gmm_limit_set(context, NULL, GMM_NO_LIMIT));
  read_trace(4, 4, 3001, 0);
  CHECK_EQUAL(file.stack_bytes, 1);
  CHECK_EQUAL(file.stack_count, 4);  // with that of no stack
  unsigned seen = 0;
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    const struct trace_stack stack = file.stacks[event->stack];
    if (event->type != TRACE_ALLOC && event->type != TRACE_FAILED) {
      CHECK_EQUAL(event->stack, 0);
      continue;
    }
    CHECK_EQUAL(event->stack, seen < 3 ? 1 : seen - 1);
    if (event->type == TRACE_ALLOC) CHECK_EQUAL(event->value, event->size);
    REQUIRE(stack.count > 3);
    const struct trace_frame *frame = &file.frames[file.stack_frames[stack.first]];
    CHECK(strcmp(frame->name, "inner") == 0 && strcmp(frame->file, "script.py") == 0);
    CHECK_EQUAL(frame->line, 7);
    frame = &file.frames[file.stack_frames[stack.first + 2]];
    REQUIRE(frame->module < file.module_count);
    CHECK(strstr(file.modules[frame->module].path, "conformance_trace") != NULL);
    CHECK(file.modules[frame->module].build_id[0] != '\0');
    ++seen;
  }
  CHECK_EQUAL(seen, 5);
  MUST(gmm_trace_begin(context, path, NULL));
  at_one_place(1000);
  OK(gmm_trace_end(context));
  read_trace(1, 1, 1000, 0);
  CHECK(file.stack_count == 1 && file.frame_count == 0 && file.module_count == 0 && file.stack_bytes == 0);
  unlink(path);
}

// While a block lives. A trace needs no file for that.
CASE_OF_KINDS(live_blocks_keep_their_stacks, ALL_KINDS) {
  new_path();
  OK(gmm_trace_set_frames(add_frames));
  MUST(gmm_trace_begin(context, NULL, DESC(trace_desc, .stack_bytes = 1)));
  void *block = ALLOC(1000);
  OK(gmm_trace_end(context));
  OK(gmm_trace_set_frames(NULL));
  OK(gmm_name(context, block, "named"));
  OK(gmm_name(context, block, NULL));
  char *text = snapshot_text();
  CHECK_MESSAGE(strstr(text, "\"stack\":") != NULL && strstr(text, "[\"inner (script.py:7)\",") != NULL &&
                    strstr(text, "conformance_trace+0x") != NULL && strstr(text, "\"build_id\":\"") != NULL,
                "%s", text);
  free(text);
  MUST(gmm_trace_begin(context, path, NULL));
  FREE(block, ALLOC(2000));
  OK(gmm_trace_end(context));
  read_trace(2, 2, 3000, 0);
  const struct trace_event *live = file.events;
  while (live->type != TRACE_ALLOC) ++live;
  CHECK(live->was_live && live->stack == 1 && live->value == 1000);
  REQUIRE(file.stack_count == 2 && file.stacks[1].count > 3);
  CHECK(strcmp(file.frames[file.stack_frames[file.stacks[1].first]].name, "inner") == 0);
  text = snapshot_text();
  CHECK(strstr(text, "\"stacks\":[],\"modules\":[]") != NULL);
  free(text);
  unlink(path);
}

static char heard[400];
static void hear(void *user, const gmm_block_info *block, gmm_stream stream, char event) {
  CHECK(user == heard && stream == GMM_STREAM_DEFAULT && block->kind == kind && block->device == device);
  const size_t used = strlen(heard);
  snprintf(heard + used, sizeof heard - used, "%c %p %llu %u '%s'\n", event, block->address,
           (unsigned long long)block->size, block->tag, block->name);
}
static void hear_alloc(void *user, const gmm_block_info *block, gmm_stream stream) { hear(user, block, stream, 'a'); }
static void hear_free(void *user, const gmm_block_info *block, gmm_stream stream) { hear(user, block, stream, 'f'); }

// A profiler of an engine hears of each block. Frees that name none are not told.
CASE_OF_KINDS(functions_hear_of_blocks, ALL_KINDS) {
  heard[0] = '\0';
  const gmm_tag tag = make_tag("told", GMM_CONTENTS_DROP);
  char *before = ALLOC_TAG(3 * MIB, tag), expected[sizeof heard];
  MUST(gmm_trace_begin(context, NULL, DESC(trace_desc, .blocks = {hear_alloc, hear_free, heard})));
  void *block = ALLOC(1000);
  OK(gmm_name(context, block, "small"));
  RESULT(gmm_free(context, before + 256, GMM_STREAM_DEFAULT), GMM_ERROR_INTERIOR_POINTER);
  FREE(block, before);
  RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
  OK(gmm_trace_end(context));
  FREE(ALLOC(1000));
  snprintf(expected, sizeof expected, "a %p 3145728 %u ''\na %p 1000 %u ''\nf %p 1000 %u 'small'\nf %p 3145728 %u ''\n",
           (void *)before, tag, block, GMM_TAG_DEFAULT, block, GMM_TAG_DEFAULT, (void *)before, tag);
  CHECK_MESSAGE(strcmp(heard, expected) == 0, "%s", heard);
}

// The blocks that have stacks stand for all bytes, and each large one for itself.
CASE(sampled_stacks_estimate_all_bytes) {
  enum { SAMPLE = 16384, BLOCKS = 5000 };
  new_path();
  MUST(gmm_trace_begin(context, path, DESC(trace_desc, .stack_bytes = SAMPLE)));
  uint64_t bytes = 5 * 2 * SAMPLE, estimate = 0;
  unsigned stacks = 0, large = 0;
  for (unsigned i = 0; i < BLOCKS; ++i) {
    const uint64_t size = 1 + i * 7919 % (SAMPLE / 2);
    at_one_place(size);
    bytes += size;
    if (i % 1000 == 0) at_another(2 * SAMPLE);
  }
  OK(gmm_trace_end(context));
  read_trace(BLOCKS + 5, BLOCKS + 5, bytes, 0);
  for (size_t i = 0; i < file.count; ++i) {
    const struct trace_event *event = &file.events[i];
    if (event->type != TRACE_ALLOC || event->stack == 0) continue;
    ++stacks;
    estimate += event->value;
    if (event->size != 2 * SAMPLE) continue;
    CHECK_EQUAL(event->value, event->size);
    ++large;
  }
  CHECK_EQUAL(large, 5);
  CHECK(stacks < BLOCKS / 2);
  // Of about 1,250 points the standard deviation is 1.6 %.
  CHECK_MESSAGE(estimate > bytes / 10 * 9 && estimate < bytes / 10 * 11, "%.0f", (double)estimate);
  unlink(path);
}

// A tag's name is that of its allocations, a block's name stands where it was given. An alloc has its alignment.
CASE(names_are_in_it) {
  new_path();
  const char *long_name = "a name of 63 bytes, which is as long as the name of a tag can b";
  const gmm_tag tag = make_tag(long_name, GMM_CONTENTS_DROP);
  MUST(gmm_trace_begin(context, path, NULL));
  char *one = ALLOC_TAG(5000, tag);
  void *two = NULL;
  OK(gmm_alloc(context, 5000, HERE(.alignment = 65536, .flags = GMM_ALLOC_DEDICATED), &two));
  OK(gmm_name(context, one + 17, "short"));
  OK(gmm_name(context, two, long_name));
  OK(gmm_name(context, one, NULL));
  RESULT(gmm_name(context, two, ""), GMM_ERROR_INVALID_VALUE);
  FREE(one);
  FREE(two);
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

// A replay reserves it, too.
VMM_CASE(a_block_is_born_paused) {
  new_path();
  MUST(gmm_trace_begin(context, path, NULL));
  char *block = ALLOC_FLAGS((uint64_t)1 << 40, GMM_ALLOC_PAUSED);
  OK(gmm_resume_range(context, block, 1, NULL));
  FREE(block);
  OK(gmm_trace_end(context));
  read_trace(1, 1, (uint64_t)1 << 40, 0);
  unsigned seen = 0;
  for (size_t i = 0; i < file.count; ++i)
    seen += file.events[i].type == TRACE_ALLOC && file.events[i].log2_alignment == TRACE_BORN_PAUSED;
  CHECK_EQUAL(seen, 1);
  unlink(path);
}

CASE(a_full_disk_is_reported) {
  if (access("/dev/full", W_OK) != 0) SKIP("no /dev/full here");
  RESULT(gmm_trace_begin(context, "/dev/full", NULL), GMM_ERROR_IO);
  RESULT(gmm_trace_end(context), GMM_ERROR_UNBALANCED);
}

// The environment names the file; "%p" is the process. Each further context has a file of its own.
CASE(the_environment_starts_a_trace) {
  new_path();
  setenv("GMM_TRACE", path, 1);
  gmm_context *other = open_context(1);
  gmm_context *second_one = open_context(1);
  void *block = NULL;
  OK(gmm_alloc(second_one, 100, NULL, &block));
  OK(gmm_context_release(second_one));
  OK(gmm_alloc(other, 3000, NULL, &block));
  OK(gmm_free(other, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  read_trace(1, 1, 3000, 0);
  unlink(path);
  strcat(path, ".2");
  read_trace(1, 0, 100, 0);
  unlink(path);
  setenv("GMM_TRACE", "/tmp/gmm-trace-%p.end", 1);
  other = open_context(1);
  unsetenv("GMM_TRACE");
  OK(gmm_alloc(other, 200, NULL, &block));
  OK(gmm_context_release(other));
  snprintf(path, sizeof path, "/tmp/gmm-trace-%d.end.3", (int)getpid());
  read_trace(1, 0, 200, 0);
  unlink(path);
  // A path that is too long is reported in the log.
  static char long_path[8192];
  memset(long_path, 'x', sizeof long_path - 1);
  setenv("GMM_TRACE", long_path, 1);
  OK(gmm_context_release(open_context(1)));
  unsetenv("GMM_TRACE");
}

static int end_the_trace(void *block) {
  const int wrong =
      (gmm_free(context, block, GMM_STREAM_DEFAULT) != GMM_ERROR_FORKED) + (gmm_trace_end(context) != GMM_ERROR_FORKED);
  fflush(NULL);
  return wrong;
}
// A child inherits the file, and may even flush everything: events are written once, by the parent. The child
// ends without exit(), at which a leak checker would find the parent's memory.
CASE(a_child_writes_nothing) {
  new_path();
  MUST(gmm_trace_begin(context, path, NULL));
  void *block = ALLOC(100);
  CHECK_EQUAL(in_child(end_the_trace, block), 0);
  FREE(block);
  OK(gmm_trace_end(context));
  read_trace(1, 1, 100, 0);
  unlink(path);
}

enum { PAIRS = 20000 };

static void record_pairs(unsigned count) {
  for (unsigned i = 0; i < count; ++i) FREE(ALLOC(500));
}
// Ends without a word to gmm: by exit() beside threads that record, by _exit(), or by a signal.
static atomic_uint pairs_recorded;
static void *record_for_ever(void *unused) {
  (void)unused;
  for (;;) {
    record_pairs(1);
    atomic_fetch_add(&pairs_recorded, 1);
  }
  return NULL;
}
// PATH, and how the process ends.
static int second(char **words) {
  const char *how = words[1];
  ends_begin();  // its context is not traced
  setenv("GMM_TRACE", words[0], 1);
  context = open_context(0);
  kind = GMM_KIND_DEVICE;
  if (strcmp(how, "threads") == 0) {
    pthread_t threads[3];
    for (unsigned i = 0; i < 3; ++i) REQUIRE(pthread_create(&threads[i], NULL, record_for_ever, NULL) == 0);
    while (atomic_load(&pairs_recorded) < PAIRS) sleep_ms(1);
    exit(0);
  }
  record_pairs(PAIRS);
  if (strcmp(how, "signal") == 0) kill(getpid(), SIGKILL);
  if (strcmp(how, "_exit") == 0) _exit(0);
  return 0;  // from main(): exit()
}

CASE(a_program_that_simply_ends_loses_nothing) {
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
    CHECK_MESSAGE(i < 3 ? pairs == PAIRS : pairs >= PAIRS, "%s: %u pairs", ways[i], pairs);
    CHECK(events_of(TRACE_ALLOC) >= pairs && events_of(TRACE_ALLOC) <= pairs + 3);
    unlink(path);
  }
}

int main(int count, char **words) { return run_cases_or(second, count, words); }
