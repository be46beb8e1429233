// SPDX-License-Identifier: Apache-2.0
// stats.h: limits, the out-of-memory handler, counters, snapshots, traces, trim, reset and defer.
#include "../support/gmm_test.h"

static gmm_result try_alloc(uint64_t size, gmm_tag tag, void **out) {
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = tag;
  return gmm_alloc(context, size, &desc, out);
}
static void set_limit(uint32_t flags, gmm_tag tag, uint64_t bytes) {
  gmm_scope scope = {.struct_size = sizeof scope, .flags = flags, .device = device, .tag = tag};
  OK(gmm_set_limit(context, &scope, bytes));
}

static void limits_hold(uint32_t flags) {
  gmm_tag tag = make_tag("limited", GMM_CONTENTS_DROP), other = make_tag("other", GMM_CONTENTS_DROP);
  set_limit(flags, tag, 16 * MIB);
  void *blocks[64];
  unsigned count = 0;
  gmm_result result = GMM_OK;
  while (count < 64 && (result = try_alloc(900000, tag, &blocks[count])) == GMM_OK) ++count;
  CHECK_EQUAL(result, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(count >= 8 && count <= 18, "%u blocks of 900,000 bytes fit into 16 MiB", count);
  CHECK(strlen(gmm_last_error_message()) > 20);
  gmm_statistics statistics = stats_of(flags, device, tag, 0);
  CHECK(statistics.reserved_bytes <= 16 * MIB);
  CHECK_EQUAL(statistics.live_blocks, count);
  CHECK(statistics.failures >= 1);
  void *free_of_it = NULL;
  if (flags & GMM_SCOPE_TAG) {
    OK(try_alloc(20 * MIB, other, &free_of_it));  // another tag is not meant
    OK(gmm_free(context, free_of_it, GMM_STREAM_DEFAULT));
  }
  if ((flags & GMM_SCOPE_DEVICE) && device_count() > 1) {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind, .device = device == 0 ? 1 : 0, .tag = tag};
    OK(gmm_alloc(context, 20 * MIB, &desc, &free_of_it));  // nor is another device
    OK(gmm_free(context, free_of_it, GMM_STREAM_DEFAULT));
  }
  set_limit(flags, tag, 4 * MIB);  // below what is held: growth stops, the rest stays
  for (unsigned i = 0; i < count; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_ACTIVE);
  OK(gmm_free(context, blocks[0], GMM_STREAM_DEFAULT));
  OK(try_alloc(900000, tag, &blocks[0]));  // from what is held already
  void *more = NULL;
  RESULT(try_alloc(8 * MIB, tag, &more), GMM_ERROR_LIMIT_EXCEEDED);
  set_limit(flags, tag, GMM_NO_LIMIT);
  OK(try_alloc(40 * MIB, tag, &more));
  OK(gmm_free(context, more, GMM_STREAM_DEFAULT));
  for (unsigned i = 0; i < count; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}
static void device_limits_hold(void) { limits_hold(GMM_SCOPE_DEVICE); }
static void tag_limits_hold(void) { limits_hold(GMM_SCOPE_TAG); }
static void limits_of_a_tag_on_a_device_hold(void) { limits_hold(GMM_SCOPE_DEVICE | GMM_SCOPE_TAG); }

static void cached_memory_goes_before_a_limit_fails(void) {
  gmm_tag tag = make_tag("one", GMM_CONTENTS_DROP), other = make_tag("two", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  void *block = NULL;
  OK(try_alloc(20 * MIB, tag, &block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(try_alloc(24 * MIB, other, &block));  // the first tag's cache is in the way and goes
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  RESULT(try_alloc(33 * MIB, tag, &block), GMM_ERROR_LIMIT_EXCEEDED);
}

static void bad_limits_are_refused(void) {
  RESULT(gmm_set_limit(context, NULL, MIB), GMM_ERROR_INVALID_FLAGS);
  gmm_scope scope = {.struct_size = sizeof scope, .flags = 0};
  RESULT(gmm_set_limit(context, &scope, MIB), GMM_ERROR_INVALID_FLAGS);
  scope.flags = GMM_SCOPE_DEVICE | GMM_SCOPE_KIND;
  RESULT(gmm_set_limit(context, &scope, MIB), GMM_ERROR_INVALID_FLAGS);
  scope.flags = GMM_SCOPE_DEVICE;
  scope.device = 99;
  RESULT(gmm_set_limit(context, &scope, MIB), GMM_ERROR_INVALID_DEVICE);
  scope.flags = GMM_SCOPE_TAG;
  scope.tag = 3996;
  RESULT(gmm_set_limit(context, &scope, MIB), GMM_ERROR_INVALID_TAG);
  scope.struct_size = 3;
  RESULT(gmm_set_limit(context, &scope, MIB), GMM_ERROR_INVALID_DESCRIPTOR);
  void *block = ALLOC(10 * MIB);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void a_limit_of_zero_stops_everything(void) {
  set_limit(GMM_SCOPE_DEVICE, 0, 0);
  void *block = NULL;
  RESULT(try_alloc(1, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
  OK(try_alloc(1, GMM_TAG_CURRENT, &block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

// --- the out-of-memory handler -----------------------------------------------------------------------------------
static struct {
  int calls, wrong, answer_for;
  void *to_free[8];
  unsigned to_free_count;
  gmm_oom_info last;
  gmm_tag tag;
} handler;
static int32_t on_oom(void *user, const gmm_oom_info *info) {
  if (user != &handler || info->struct_size < sizeof *info || info->attempt != (uint32_t)++handler.calls) ++handler.wrong;
  handler.last = *info;
  if (handler.calls <= (int)handler.to_free_count) OK(gmm_free(context, handler.to_free[handler.calls - 1], GMM_STREAM_DEFAULT));
  return handler.calls <= handler.answer_for;
}

static void the_handler_may_free_and_try_again(void) {
  memset(&handler, 0, sizeof handler);
  gmm_tag tag = make_tag("handled", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  for (unsigned i = 0; i < 3; ++i) OK(try_alloc(9 * MIB, tag, &handler.to_free[i]));
  OK(gmm_set_oom_handler(context, on_oom, &handler));
  void *block = NULL;
  RESULT(try_alloc(18 * MIB, tag, &block), GMM_ERROR_LIMIT_EXCEEDED);  // it answers 0
  CHECK_EQUAL(handler.calls, 1);
  CHECK_EQUAL(handler.last.cause, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(handler.last.device, device);
  CHECK_EQUAL(handler.last.kind, kind);
  CHECK_EQUAL(handler.last.tag, tag);
  CHECK_EQUAL(handler.last.requested, 18 * MIB);
  CHECK(handler.last.reserved >= 27 * MIB && handler.last.reserved <= 32 * MIB);
  handler.calls = 0;
  handler.answer_for = 3;
  handler.to_free_count = 3;
  OK(try_alloc(18 * MIB, tag, &block));  // frees one block each time
  CHECK_MESSAGE(handler.calls >= 1 && handler.calls <= 3, "%d calls", handler.calls);
  CHECK_EQUAL(handler.wrong, 0);
  OK(gmm_set_oom_handler(context, NULL, NULL));
  int calls = handler.calls;
  for (int i = calls; i < 3; ++i) OK(gmm_free(context, handler.to_free[i], GMM_STREAM_DEFAULT));
  void *more = NULL;
  RESULT(try_alloc(18 * MIB, tag, &more), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(handler.calls, calls);  // it was taken away
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void the_handler_is_asked_at_most_100_times(void) {
  memset(&handler, 0, sizeof handler);
  handler.answer_for = 1000000;
  set_limit(GMM_SCOPE_DEVICE, 0, 4 * MIB);
  OK(gmm_set_oom_handler(context, on_oom, &handler));
  void *block = NULL;
  RESULT(try_alloc(18 * MIB, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(handler.calls >= 1 && handler.calls <= 100, "%d calls", handler.calls);
  CHECK_EQUAL(handler.wrong, 0);
  RESULT(try_alloc(0, GMM_TAG_CURRENT, &block), GMM_ERROR_INVALID_SIZE);  // not asked about the caller's mistakes
  CHECK(handler.calls <= 100);
}

static int32_t pause_on_oom(void *user, const gmm_oom_info *info) {
  (void)info;
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = user, .tag_count = 1};
  ++handler.calls;
  return gmm_pause(context, &desc, NULL) == GMM_OK;
}
static void the_handler_may_pause(void) {
  memset(&handler, 0, sizeof handler);
  gmm_tag sleeper = make_tag("sleeper", GMM_CONTENTS_HOST);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  void *sleeping = NULL, *block = NULL;
  OK(try_alloc(20 * MIB, sleeper, &sleeping));
  write_pattern(sleeping, 20 * MIB, 5, GMM_STREAM_DEFAULT);
  OK(gmm_set_oom_handler(context, pause_on_oom, &sleeper));
  OK(try_alloc(20 * MIB, GMM_TAG_CURRENT, &block));
  CHECK_EQUAL(handler.calls, 1);
  CHECK_EQUAL(query(sleeping).state, GMM_STATE_PAUSED);
  OK(gmm_set_oom_handler(context, NULL, NULL));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(sleeping, 20 * MIB, 5);
  OK(gmm_free(context, sleeping, GMM_STREAM_DEFAULT));
}

// --- counters -------------------------------------------------------------------------------------------------------
static void counters_add_up(void) {
  gmm_tag tags[3] = {GMM_TAG_DEFAULT, make_tag("x", GMM_CONTENTS_DROP), make_tag("y", GMM_CONTENTS_DROP)};
  enum { COUNT = 90 };
  void *blocks[COUNT];
  uint64_t live[3] = {0};
  uint32_t devices = device_count();
  for (unsigned i = 0; i < COUNT; ++i) {
    gmm_kind k = GMM_KIND_DEVICE + i % 4;
    if (!has_kind(k)) k = GMM_KIND_DEVICE;
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k, .device = (gmm_device)(i % devices), .tag = tags[i % 3]};
    MUST(gmm_alloc(context, 1000 + i * 777, &desc, &blocks[i]));
    live[i % 3] += 1000 + i * 777;
  }
  gmm_statistics all = stats();
  CHECK_EQUAL(all.struct_size, sizeof all);
  CHECK_EQUAL(all.live_blocks, COUNT);
  CHECK_EQUAL(all.live_bytes, live[0] + live[1] + live[2]);
  CHECK_EQUAL(all.live_tags, 3);
  CHECK_EQUAL(all.allocations, COUNT);
  CHECK_EQUAL(all.frees, 0);
  CHECK_EQUAL(all.failures, 0);
  CHECK(all.reserved_bytes >= all.live_bytes && all.peak_reserved_bytes >= all.reserved_bytes && all.peak_live_bytes >= all.live_bytes);
  CHECK(all.cached_bytes <= all.reserved_bytes - all.live_bytes);
  CHECK(all.extents > 0 && all.backend_calls > 0);
  gmm_statistics by_tag = {0}, by_kind = {0}, by_device = {0};
#define ADD(to, s) \
  (to.live_bytes += s.live_bytes, to.live_blocks += s.live_blocks, to.reserved_bytes += s.reserved_bytes, to.cached_bytes += s.cached_bytes, to.allocations += s.allocations, to.extents += s.extents)
  for (unsigned i = 0; i < 3; ++i) {
    gmm_statistics s = stats_of(GMM_SCOPE_TAG, 0, tags[i], 0);
    CHECK_EQUAL(s.live_bytes, live[i]);
    CHECK_EQUAL(s.live_tags, 1);
    ADD(by_tag, s);
  }
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    gmm_statistics s = stats_of(GMM_SCOPE_KIND, 0, 0, k);
    ADD(by_kind, s);
  }
  for (uint32_t d = 0; d < devices; ++d) {
    gmm_statistics s = stats_of(GMM_SCOPE_DEVICE, (gmm_device)d, 0, 0);
    ADD(by_device, s);
  }
  const gmm_statistics *sums[] = {&by_tag, &by_kind, &by_device};
  for (unsigned i = 0; i < 3; ++i) {
    CHECK_EQUAL(sums[i]->live_bytes, all.live_bytes);
    CHECK_EQUAL(sums[i]->live_blocks, all.live_blocks);
    CHECK_EQUAL(sums[i]->reserved_bytes, all.reserved_bytes);
    CHECK_EQUAL(sums[i]->cached_bytes, all.cached_bytes);
    CHECK_EQUAL(sums[i]->allocations, all.allocations);
    CHECK_EQUAL(sums[i]->extents, all.extents);
  }
  gmm_statistics narrow = {0};
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
    for (uint32_t d = 0; d < devices; ++d)
      for (unsigned t = 0; t < 3; ++t) {
        gmm_statistics s = stats_of(GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND, (gmm_device)d, tags[t], k);
        ADD(narrow, s);
      }
  CHECK_EQUAL(narrow.live_bytes, all.live_bytes);
  CHECK_EQUAL(narrow.reserved_bytes, all.reserved_bytes);
  for (unsigned i = 0; i < COUNT; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  all = stats();
  CHECK_EQUAL(all.live_blocks, 0);
  CHECK_EQUAL(all.live_bytes, 0);
  CHECK_EQUAL(all.frees, COUNT);
  CHECK_EQUAL(all.cached_bytes, all.reserved_bytes);
  CHECK(all.peak_live_bytes >= live[0] + live[1] + live[2]);
}

static void bad_scopes_are_refused(void) {
  gmm_statistics s;
  memset(&s, 0x5a, sizeof s);
  s.struct_size = sizeof s;
  gmm_statistics was = s;
  gmm_scope scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE, .device = 99};
  RESULT(gmm_stats(context, &scope, &s), GMM_ERROR_INVALID_DEVICE);
  RESULT(gmm_trim(context, &scope, NULL), GMM_ERROR_INVALID_DEVICE);
  scope = (gmm_scope){.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = 3995};
  RESULT(gmm_stats(context, &scope, &s), GMM_ERROR_INVALID_TAG);
  RESULT(gmm_trim(context, &scope, NULL), GMM_ERROR_INVALID_TAG);
  scope = (gmm_scope){.struct_size = sizeof scope, .flags = GMM_SCOPE_KIND, .kind = 9};
  RESULT(gmm_stats(context, &scope, &s), GMM_ERROR_INVALID_KIND);
  RESULT(gmm_trim(context, &scope, NULL), GMM_ERROR_INVALID_KIND);
  scope = (gmm_scope){.struct_size = sizeof scope, .flags = 0x80};
  RESULT(gmm_stats(context, &scope, &s), GMM_ERROR_INVALID_FLAGS);
  RESULT(gmm_trim(context, &scope, NULL), GMM_ERROR_INVALID_FLAGS);
  scope = (gmm_scope){.struct_size = 4};
  RESULT(gmm_stats(context, &scope, &s), GMM_ERROR_INVALID_DESCRIPTOR);
  CHECK(memcmp(&s, &was, sizeof s) == 0);
}

// --- snapshot ---------------------------------------------------------------------------------------------------------
static struct {
  char *text;
  uint64_t size, pieces;
  bool stop;
} written;
static int32_t write_text(void *user, const char *text, uint64_t size) {
  (void)user;
  if (written.stop && written.pieces >= 2) return 1;
  written.text = realloc(written.text, written.size + size + 1);
  memcpy(written.text + written.size, text, size);
  written.size += size;
  written.text[written.size] = 0;
  ++written.pieces;
  return 0;
}

// A reader of JSON that checks the grammar and keeps nothing.
static const char *json_at;
static bool json_value(int depth);
static void json_space(void) {
  while (*json_at == ' ' || *json_at == '\n' || *json_at == '\t' || *json_at == '\r') ++json_at;
}
static bool json_string(void) {
  if (*json_at++ != '"') return false;
  for (; *json_at != '"'; ++json_at) {
    if ((unsigned char)*json_at < 0x20) return false;
    if (*json_at != '\\') continue;
    ++json_at;
    if (*json_at == 'u') {
      for (unsigned i = 0; i < 4; ++i)
        if (strchr("0123456789abcdefABCDEF", *++json_at) == NULL || *json_at == 0) return false;
    } else if (*json_at == 0 || strchr("\"\\/bfnrt", *json_at) == NULL) {
      return false;
    }
  }
  ++json_at;
  return true;
}
static bool json_list(char end, bool members, int depth) {
  ++json_at;
  json_space();
  if (*json_at == end) return ++json_at, true;
  for (;;) {
    json_space();
    if (members) {
      if (!json_string()) return false;
      json_space();
      if (*json_at++ != ':') return false;
    }
    if (!json_value(depth + 1)) return false;
    json_space();
    if (*json_at == end) return ++json_at, true;
    if (*json_at++ != ',') return false;
  }
}
static bool json_value(int depth) {
  json_space();
  if (depth > 20) return false;
  if (*json_at == '{') return json_list('}', true, depth);
  if (*json_at == '[') return json_list(']', false, depth);
  if (*json_at == '"') return json_string();
  if (strncmp(json_at, "true", 4) == 0 || strncmp(json_at, "null", 4) == 0) return json_at += 4, true;
  if (strncmp(json_at, "false", 5) == 0) return json_at += 5, true;
  char *end = NULL;
  if (*json_at != '-' && (*json_at < '0' || *json_at > '9')) return false;
  strtod(json_at, &end);
  if (end == json_at) return false;
  json_at = end;
  return true;
}

static void snapshots_are_json(void) {
  gmm_tag tag = 0;
  OK(gmm_tag_create(context, "a \"quoted\\ name\twith\n\x01 things \xc3\xbc", NULL, &tag));
  void *blocks[50];
  for (unsigned i = 0; i < 50; ++i) {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_DEVICE + i % 4, .tag = i % 2 ? tag : GMM_TAG_DEFAULT};
    if (!has_kind(desc.kind)) desc.kind = GMM_KIND_DEVICE;
    MUST(gmm_alloc(context, 1234 + i * 1000, &desc, &blocks[i]));
  }
  OK(gmm_pause(context, NULL, NULL));
  memset(&written, 0, sizeof written);
  OK(gmm_snapshot(context, write_text, NULL));
  REQUIRE(written.text != NULL);
  json_at = written.text;
  bool valid = json_value(0);
  json_space();
  CHECK_MESSAGE(valid && *json_at == 0, "not JSON at byte %ld of %llu: %.60s", (long)(json_at - written.text), (unsigned long long)written.size, json_at);
  CHECK(strstr(written.text, "\"gmm-snapshot\"") != NULL);
  CHECK(strstr(written.text, "\"version\"") != NULL);
  char address[32];
  snprintf(address, sizeof address, "%llx", (unsigned long long)(uintptr_t)blocks[7]);
  char decimal[32];
  snprintf(decimal, sizeof decimal, "%llu", (unsigned long long)(uintptr_t)blocks[7]);
  CHECK_MESSAGE(strstr(written.text, address) != NULL || strstr(written.text, decimal) != NULL, "block %p is not in the snapshot", blocks[7]);
  CHECK(strstr(written.text, "8234") != NULL);  // its size
  const char *out = getenv("SNAPSHOT_OUT");
  FILE *file = out != NULL ? fopen(out, "w") : NULL;
  if (file != NULL) {
    fwrite(written.text, 1, written.size, file);
    fclose(file);
  }
  written.stop = true;
  written.pieces = 2;
  RESULT(gmm_snapshot(context, write_text, NULL), GMM_ERROR_IO);
  RESULT(gmm_snapshot(context, NULL, NULL), GMM_ERROR_NULL_ARGUMENT);
  free(written.text);
  OK(gmm_resume(context, NULL, NULL));
  for (unsigned i = 0; i < 50; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}

// --- trace -------------------------------------------------------------------------------------------------------------
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

// --- trim, reset, defer ------------------------------------------------------------------------------------------------
static void trim_gives_everything_back(void) {
  void *blocks[100];
  for (unsigned i = 0; i < 100; ++i) blocks[i] = ALLOC(1000 + i * i * 150);
  uint64_t held = stats().reserved_bytes;
  CHECK(held > 0);
  for (unsigned i = 1; i < 100; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  write_pattern(blocks[0], 1000, 7, GMM_STREAM_DEFAULT);
  uint64_t bytes = 0;
  gmm_statistics before = stats();
  OK(gmm_trim(context, NULL, &bytes));
  gmm_statistics after = stats();
  CHECK_EQUAL(before.reserved_bytes - after.reserved_bytes, bytes);
  CHECK(bytes > 0);
  CHECK_PATTERN(blocks[0], 1000, 7);
  CHECK(after.reserved_bytes <= 8 * MIB);
  OK(gmm_free(context, blocks[0], GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().extents, 0);
  CHECK(stats().peak_reserved_bytes >= held);
  bytes = 5;
  gmm_result again = gmm_trim(context, NULL, &bytes);
  CHECK(again == GMM_OK || again == GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
}

static void trim_keeps_to_its_scope(void) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP);
  void *x = ALLOC_TAG(4 * MIB, a), *y = ALLOC_TAG(4 * MIB, b);
  OK(gmm_free(context, x, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, y, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  gmm_scope scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = a};
  uint64_t bytes = 0;
  OK(gmm_trim(context, &scope, &bytes));
  CHECK(bytes >= 4 * MIB);
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, a, 0).reserved_bytes, 0);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, b, 0).reserved_bytes >= 4 * MIB);
  scope = (gmm_scope){.struct_size = sizeof scope, .flags = GMM_SCOPE_KIND, .kind = kind == GMM_KIND_HOST ? GMM_KIND_DEVICE : GMM_KIND_HOST};
  gmm_result result = gmm_trim(context, &scope, &bytes);
  CHECK(result == GMM_OK || result == GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK(stats_of(GMM_SCOPE_TAG, 0, b, 0).reserved_bytes >= 4 * MIB);
}

static void reset_ends_all_blocks(void) {
  gmm_tag tag = make_tag("stays", GMM_CONTENTS_HOST);
  gmm_heap *heap = NULL;
  gmm_heap_desc heap_desc = {.struct_size = sizeof heap_desc, .kind = kind, .device = device};
  MUST(gmm_heap_create(context, &heap_desc, &heap));
  void *blocks[60], *from_heap = NULL;
  for (unsigned i = 0; i < 60; ++i) REQUIRE((blocks[i] = ALLOC_TAG(500 + i * 9000, i % 2 ? tag : GMM_TAG_DEFAULT)) != NULL);
  for (unsigned i = 0; i < 20; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  OK(gmm_heap_alloc(heap, 5000, GMM_STREAM_DEFAULT, &from_heap));
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, device, &stream));
  gate hold;
  gate_close(&hold, stream, 0.2);
  OK(gmm_fill(context, blocks[59], 1, 500, stream));
  if (kind == GMM_KIND_VMM) {
    gmm_pause_desc pause = {.struct_size = sizeof pause, .tags = &tag, .tag_count = 1};
    OK(gmm_pause(context, &pause, NULL));
  }
  OK(gmm_reset(context));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  gmm_statistics s = stats();
  CHECK_EQUAL(s.live_blocks, 0);
  CHECK_EQUAL(s.live_bytes, 0);
  CHECK_EQUAL(s.reserved_bytes, 0);
  CHECK_EQUAL(s.paused_bytes, 0);
  CHECK_EQUAL(s.extents, 0);
  for (unsigned i = 0; i < 60; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_UNKNOWN);
  gmm_result result = gmm_free(context, blocks[40], GMM_STREAM_DEFAULT);
  CHECK_MESSAGE(result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_ALREADY_FREED, "%s", gmm_result_name(result));
  gmm_tag found = 0;
  OK(gmm_tag_find(context, "stays", &found));
  CHECK_EQUAL(found, tag);
  OK(gmm_heap_alloc(heap, 5000, GMM_STREAM_DEFAULT, &from_heap));  // heaps stay
  for (unsigned i = 0; i < 60; ++i) REQUIRE((blocks[i] = ALLOC_TAG(500 + i * 9000, tag)) != NULL);
  for (unsigned i = 0; i < 60; ++i) write_pattern(blocks[i], 500, i, GMM_STREAM_DEFAULT);
  for (unsigned i = 0; i < 60; ++i) CHECK_PATTERN(blocks[i], 500, i);
  for (unsigned i = 0; i < 60; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  OK(gmm_free(context, from_heap, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
  OK(gmm_stream_destroy(context, stream));
}

static void defer_puts_trims_off(void) {
  RESULT(gmm_defer_end(context), GMM_ERROR_UNBALANCED);
  void *block = ALLOC(20 * MIB);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_defer_begin(context));
  OK(gmm_defer_begin(context));
  uint64_t bytes = 5, held = stats().reserved_bytes;
  RESULT(gmm_trim(context, NULL, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_EQUAL(stats().reserved_bytes, held);
  OK(gmm_defer_end(context));
  CHECK_EQUAL(stats().reserved_bytes, held);
  RESULT(gmm_trim(context, NULL, NULL), GMM_UNCHANGED);
  OK(gmm_defer_end(context));
  CHECK_EQUAL(stats().reserved_bytes, 0);  // the trim that was put off
  RESULT(gmm_defer_end(context), GMM_ERROR_UNBALANCED);
}

static void a_dedicated_free_is_deferred(void) {
  OK(gmm_defer_begin(context));
  void *block = ALLOC_FLAGS(5 * MIB, GMM_ALLOC_DEDICATED);
  uint64_t calls = stats().backend_calls;
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(stats().backend_calls, calls);
  CHECK_EQUAL(stats().live_blocks, 0);
  OK(gmm_defer_end(context));
}

static void an_allocation_that_would_fail_ends_the_wait(void) {
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP);
  void *block = NULL;
  OK(gmm_defer_begin(context));
  OK(try_alloc(20 * MIB, a, &block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(try_alloc(20 * MIB, b, &block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_defer_end(context));
}

int main(void) {
  KINDS(device_limits_hold, ALL_KINDS);
  KINDS(tag_limits_hold, ALL_KINDS);
  KINDS(limits_of_a_tag_on_a_device_hold, ALL_KINDS);
  KINDS(cached_memory_goes_before_a_limit_fails, ALL_KINDS);
  KINDS(a_limit_of_zero_stops_everything, ALL_KINDS);
  PLAIN(bad_limits_are_refused);
  KINDS(the_handler_may_free_and_try_again, ALL_KINDS);
  KINDS(the_handler_is_asked_at_most_100_times, ALL_KINDS);
  KINDS(the_handler_may_pause, 1u << GMM_KIND_VMM);
  PLAIN(counters_add_up);
  PLAIN(bad_scopes_are_refused);
  PLAIN(snapshots_are_json);
  KINDS(traces_can_be_replayed, ALL_KINDS);
  PLAIN(a_full_disk_is_reported);
  PLAIN(the_environment_starts_a_trace);
  KINDS(trim_gives_everything_back, ALL_KINDS);
  KINDS(trim_keeps_to_its_scope, ALL_KINDS);
  KINDS(reset_ends_all_blocks, ALL_KINDS);
  KINDS(defer_puts_trims_off, ALL_KINDS);
  KINDS(a_dedicated_free_is_deferred, ALL_KINDS);
  KINDS(an_allocation_that_would_fail_ends_the_wait, ALL_KINDS);
  return check_finish();
}
