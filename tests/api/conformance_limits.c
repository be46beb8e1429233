// SPDX-License-Identifier: Apache-2.0
// Limits and the out-of-memory handler of stats.h.
#include <signal.h>
#include <sys/resource.h>

#include "../support/gmm_test.h"

static void limit_holds(uint32_t flags) {
  gmm_tag tag = make_tag("limited", GMM_CONTENTS_DROP), other = make_tag("other", GMM_CONTENTS_DROP);
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  set_limit(flags, tag, 16 * MIB);
  void *blocks[64];
  unsigned count = 0;
  gmm_result result = GMM_OK;
  while (count < 64 && (result = try_alloc(900000, tag, &blocks[count])) == GMM_OK) ++count;
  CHECK_EQUAL(result, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(count >= 8 && count <= 18, "%u blocks of 900,000 bytes fit into 16 MiB", count);
  CHECK(strlen(gmm_last_error_message()) > 20);
  gmm_stats_info statistics = stats_of(flags, device, tag, 0);
  CHECK(statistics.reserved_bytes <= 16 * MIB);
  CHECK_EQUAL(statistics.live_blocks, count);
  CHECK(statistics.failures >= 1);
  void *free_of_it = NULL;
  if (flags & GMM_SCOPE_TAG) {
    OK(try_alloc(20 * MIB, other, &free_of_it));  // another tag is not meant
    FREE(free_of_it);
  }
  if ((flags & GMM_SCOPE_DEVICE) && device_count() > 1) {
    OK(gmm_alloc(context, 20 * MIB, DESC(alloc_desc, .kind = kind, .device = device == 0 ? 1 : 0, .tag = tag),
                 &free_of_it));  // nor is another device
    FREE(free_of_it);
  }
  set_limit(flags, tag, 4 * MIB);  // below what is held: growth stops, the rest stays
  for (unsigned i = 0; i < count; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_ACTIVE);
  FREE(blocks[0]);
  OK(try_alloc(900000, tag, &blocks[0]));  // from what is held already
  void *more = NULL;
  RESULT(try_alloc(8 * MIB, tag, &more), GMM_ERROR_LIMIT_EXCEEDED);
  set_limit(flags, tag, GMM_NO_LIMIT);
  OK(try_alloc(40 * MIB, tag, &more));
  FREE(more);
  FREE_ALL(blocks, count);
}
// A limit of the whole context, a device, a tag, and a tag on a device.
CASE_OF_KINDS(limits_hold, ALL_KINDS) {
  static const uint32_t scopes[] = {0, GMM_SCOPE_DEVICE, GMM_SCOPE_TAG, GMM_SCOPE_DEVICE | GMM_SCOPE_TAG};
  for (unsigned i = 0; i < 4; ++i) limit_holds(scopes[i]);
  void *block = (void *)0x1;
  OK(gmm_limit_set(context, NULL, 4 * MIB));  // the whole context, too
  RESULT(try_alloc(20 * MIB, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK(block == NULL);
  OK(gmm_limit_set(context, NULL, GMM_NO_LIMIT));
  set_limit(GMM_SCOPE_DEVICE, 0, 0);
  RESULT(try_alloc(1, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
}

// The message and the log name who holds the memory, what is free in pieces, and what a pause gives.
static char heard[8192];
static void hear(void *user, gmm_log_level level, const char *message) {
  (void)user;
  const size_t used = strlen(heard);
  if (level == GMM_LOG_WARNING) snprintf(heard + used, sizeof heard - used, "%s\n", message);
}
CASE_OF_KINDS(a_failure_says_who_holds_the_memory, ALL_KINDS) {
  gmm_context *const other = context;
  context = OPEN(.log = {hear, NULL}, .host_devices = device_count());
  heard[0] = '\0';
  MUST(gmm_trace_begin(context, NULL, DESC(trace_desc, .stack_bytes = 1)));
  void *blocks[12], *more = NULL;
  for (unsigned i = 0; i < 12; ++i) {
    char name[16];
    snprintf(name, sizeof name, "holder%02u", i);
    OK(try_alloc((i + 1) * 2 * MIB, make_tag(name, GMM_CONTENTS_DROP), &blocks[i]));
  }
  gmm_stats_info stats = {.struct_size = sizeof stats};
  OK(gmm_stats_query(context, NULL, &stats));
  OK(gmm_limit_set(context, NULL, stats.reserved_bytes));
  RESULT(try_alloc(64 * MIB, GMM_TAG_CURRENT, &more), GMM_ERROR_LIMIT_EXCEEDED);
  const char *const message = gmm_last_error_message();
  CHECK_MESSAGE(strstr(message, "largest holders: tag \"holder11\"") != NULL && strstr(message, "holder09") != NULL &&
                    strstr(message, "holder08") == NULL,
                "%s", message);
  CHECK_MESSAGE((strstr(message, "A pause of \"holder11\" gives ") != NULL) == (kind == GMM_KIND_VMM), "%s", message);
  CHECK_MESSAGE(strstr(message, " bytes come from one stack, at conformance_limits+0x") != NULL, "%s", message);
  CHECK_MESSAGE(strstr(heard, " 163577856 bytes in 12 live blocks were allocated at conformance_limits+0x") != NULL,
                "%s", heard);
  CHECK_MESSAGE(strstr(heard, "gmm_alloc of 67108864 bytes failed") != NULL && strstr(heard, "holder11") != NULL &&
                    strstr(heard, "holder02") != NULL && strstr(heard, "holder01") == NULL,
                "%s", heard);
  heard[0] = '\0';
  RESULT(try_alloc(64 * MIB, GMM_TAG_CURRENT, &more), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(heard[0] == '\0', "at most once a second: %s", heard);
  FREE_ALL(blocks, 12);
  OK(gmm_context_release(context));
  context = other;
}

// --- the out-of-memory handler -----------------------------------------------------------------------------------
static struct {
  int calls, wrong, answer_for;
  void *to_free[8];
  unsigned to_free_count;
  bool fails;
  gmm_oom_info last;
  gmm_tag tag;
} handler;
static int32_t on_oom(void *user, const gmm_oom_info *info) {
  if (user != &handler || info->struct_size < sizeof *info || info->attempt != (uint32_t)++handler.calls)
    ++handler.wrong;
  handler.last = *info;
  if (handler.fails) RESULT(gmm_free(context, &handler, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
  if (handler.calls <= (int)handler.to_free_count) FREE(handler.to_free[handler.calls - 1]);
  return handler.calls <= handler.answer_for;
}

CASE_OF_KINDS(the_handler_may_free_and_try_again, ALL_KINDS) {
  memset(&handler, 0, sizeof handler);
  gmm_tag tag = make_tag("handled", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  for (unsigned i = 0; i < 3; ++i) OK(try_alloc(9 * MIB, tag, &handler.to_free[i]));
  OK(gmm_context_set_oom_handler(context, on_oom, &handler));
  void *block = NULL;
  RESULT(try_alloc(18 * MIB, tag, &block), GMM_ERROR_LIMIT_EXCEEDED);  // it answers 0
  CHECK_EQUAL(handler.calls, 1);
  // A failure inside it is not the cause of the allocation's.
  char without[1024];
  snprintf(without, sizeof without, "%s", gmm_last_error_message());
  handler.fails = true;
  handler.calls = 0;
  RESULT(try_alloc(18 * MIB, tag, &block), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(strcmp(without, gmm_last_error_message()) == 0, "%s\n%s", without, gmm_last_error_message());
  handler.fails = false;
  CHECK(handler.last.cause == GMM_ERROR_LIMIT_EXCEEDED && handler.last.device == device);
  CHECK(handler.last.kind == kind && handler.last.tag == tag && handler.last.requested_bytes == 18 * MIB);
  CHECK(handler.last.reserved_bytes >= 27 * MIB && handler.last.reserved_bytes <= 32 * MIB);
  handler.calls = 0;
  handler.answer_for = 3;
  handler.to_free_count = 3;
  OK(try_alloc(18 * MIB, tag, &block));  // frees one block each time
  CHECK_MESSAGE(handler.calls >= 1 && handler.calls <= 3, "%d calls", handler.calls);
  CHECK_EQUAL(handler.wrong, 0);
  OK(gmm_context_set_oom_handler(context, NULL, NULL));
  const int calls = handler.calls;
  RESULT(try_alloc(18 * MIB, tag, &block), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(handler.calls, calls);  // it was taken away
}

static struct { atomic_int inside, replacing, replaced; } slow;
static int32_t wait_in_handler(void *user, const gmm_oom_info *info) {
  (void)user, (void)info;
  // From inside, a replacement would wait for itself.
  RESULT(gmm_context_set_oom_handler(context, NULL, NULL), GMM_ERROR_BUSY);
  atomic_store(&slow.inside, 1);
  SOON(atomic_load(&slow.replacing) != 0);
  sleep_ms(20);
  CHECK_EQUAL(atomic_load(&slow.replaced), 0);  // the replacement still waits for this call
  return 0;
}
static void *ask_for_too_much(void *unused) {
  (void)unused;
  void *block = NULL;
  RESULT(try_alloc(18 * MIB, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
  return NULL;
}
static void *take_the_handler_away(void *unused) {
  (void)unused;
  atomic_store(&slow.replacing, 1);
  OK(gmm_context_set_oom_handler(context, NULL, NULL));
  atomic_store(&slow.replaced, 1);
  return NULL;
}
CASE_OF_KINDS(a_replacement_waits_for_the_handler, 1u << GMM_KIND_DEVICE) {
  pthread_t asks, replaces;
  memset(&slow, 0, sizeof slow);
  set_limit(GMM_SCOPE_DEVICE, 0, 4 * MIB);
  OK(gmm_context_set_oom_handler(context, wait_in_handler, &slow));
  MUST(pthread_create(&asks, NULL, ask_for_too_much, NULL));
  SOON(atomic_load(&slow.inside) != 0);
  MUST(pthread_create(&replaces, NULL, take_the_handler_away, NULL));
  pthread_join(asks, NULL);
  pthread_join(replaces, NULL);
  CHECK_EQUAL(atomic_load(&slow.replaced), 1);
}

CASE_OF_KINDS(the_handler_is_asked_at_most_100_times, ALL_KINDS) {
  memset(&handler, 0, sizeof handler);
  handler.answer_for = 1000000;
  set_limit(GMM_SCOPE_DEVICE, 0, 4 * MIB);
  OK(gmm_context_set_oom_handler(context, on_oom, &handler));
  void *block = NULL;
  RESULT(try_alloc(18 * MIB, GMM_TAG_CURRENT, &block), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(handler.calls >= 1 && handler.calls <= 100, "%d calls", handler.calls);
  CHECK_EQUAL(handler.wrong, 0);
  RESULT(try_alloc(0, GMM_TAG_CURRENT, &block), GMM_ERROR_INVALID_SIZE);  // not asked about the caller's mistakes
  CHECK(handler.calls <= 100);
}

static int32_t pause_on_oom(void *user, const gmm_oom_info *info) {
  (void)info;
  ++handler.calls;
  return pause_of(*(gmm_tag *)user) == GMM_OK;
}
VMM_CASE(the_handler_may_pause) {
  memset(&handler, 0, sizeof handler);
  gmm_tag sleeper = make_tag("sleeper", GMM_CONTENTS_HOST);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  void *sleeping = FILLED_TAG(20 * MIB, sleeper, 5);
  OK(gmm_context_set_oom_handler(context, pause_on_oom, &sleeper));
  void *block = ALLOC(20 * MIB);
  CHECK_EQUAL(handler.calls, 1);
  CHECK_EQUAL(query(sleeping).state, GMM_STATE_PAUSED);
  OK(gmm_context_set_oom_handler(context, NULL, NULL));
  FREE(block);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(sleeping, 20 * MIB, 5);
}

// Trim, then memory that waits on streams, then the handler, then an error that names the largest tag.
CASE_OF_KINDS(each_way_out_comes_in_its_turn, ALL_KINDS) {
  memset(&handler, 0, sizeof handler);
  gmm_tag tag = make_tag("wanting", GMM_CONTENTS_DROP), other = make_tag("largest_holder", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_DEVICE, 0, 32 * MIB);
  OK(gmm_context_set_oom_handler(context, on_oom, &handler));
  gmm_stream stream = open_stream();
  void *block = NULL, *wanted = NULL;
  static gate held;
  for (int waits = 0; waits < 2; ++waits) {
    block = alloc_here(__LINE__, 20 * MIB, other, stream, 0);
    if (waits) gate_close(&held, stream, 0.1);
    OK(gmm_free(context, block, stream));
    OK(try_alloc(24 * MIB, tag, &wanted));
    if (waits) CHECK(atomic_load(&held.passed));
    CHECK_EQUAL(handler.calls, 0);
    FREE(wanted);
  }
  alloc_here(__LINE__, 20 * MIB, other, stream, 0);
  RESULT(try_alloc(24 * MIB, tag, &wanted), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(handler.calls, 1);
  CHECK(message_has("largest_holder"));
  OK(gmm_context_set_oom_handler(context, NULL, NULL));
}

enum { RACERS = 8, QUOTA = 20 };
static struct {
  atomic_int ready, granted;
  gmm_tag tag;
} race;
static void *race_for_quota(void *which) {
  (void)which;
  atomic_fetch_add(&race.ready, 1);
  while (atomic_load(&race.ready) < RACERS) sleep_ms(0);
  for (unsigned i = 0; i < QUOTA; ++i) {
    void *block = NULL;
    const gmm_result result = gmm_alloc(context, 2 * MIB, HERE(.tag = race.tag, .flags = GMM_ALLOC_DEDICATED), &block);
    CHECK(result == GMM_OK || result == GMM_ERROR_LIMIT_EXCEEDED);
    atomic_fetch_add(&race.granted, result == GMM_OK);
  }
  return NULL;
}
CASE_OF_KINDS(eight_threads_share_a_quota_exactly, ALL_KINDS) {
  memset(&race, 0, sizeof race);
  race.tag = make_tag("raced_for", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_TAG, race.tag, QUOTA * 2 * MIB);
  run_threads(RACERS, race_for_quota);
  CHECK_EQUAL(atomic_load(&race.granted), QUOTA);
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, device, race.tag, 0).reserved_bytes, QUOTA * 2 * MIB);
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, device, race.tag, 0).peak_reserved_bytes, QUOTA * 2 * MIB);
}

// Growth that has failed is not tried again before the trim: a request that may be served by the thread's cache makes
// as many calls as one that names its alignment, which no cache is asked for first.
VMM_CASE(growth_is_tried_once_before_the_trim) {
  const uint64_t too_much = (stats_of(GMM_SCOPE_DEVICE, device, 0, 0).reserved_bytes + free_device_bytes()) * 2;
  gmm_tag tag = make_tag("too_much", GMM_CONTENTS_DROP);
  uint64_t calls[2];
  for (unsigned round = 0; round < 2; ++round)
    for (unsigned aligned = 0; aligned < 2; ++aligned) {
      void *out = NULL;
      const uint64_t before = stats().backend_calls;
      CHECK(gmm_alloc(context, too_much, HERE(.tag = tag, .alignment = aligned != 0 ? 256 : 0), &out) < 0);
      calls[aligned] = stats().backend_calls - before;
    }
  CHECK(calls[0] > 0);
  CHECK_EQUAL(calls[0], calls[1]);
}

// Other programs of the device would be short of memory while handle after handle is made, in vain.
VMM_CASE(a_request_beyond_the_device_takes_nothing) {
  if (on_host_backend()) SKIP("its pages are taken when they are touched");
  read_device(device);
  const uint64_t before = stats().backend_calls, held = stats().reserved_bytes;
  void *out = NULL;
  RESULT(try_alloc(device_info.total_memory + 2 * MIB, GMM_TAG_CURRENT, &out), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(stats().backend_calls - before <= 8);
  CHECK_EQUAL(stats().reserved_bytes, held);
}

static volatile sig_atomic_t size_signals;
static void count_size_signal(int number) {
  (void)number;
  ++size_signals;
}

// Memory that is a file has a limit that has nothing to do with memory. The system's way to tell it ends the process.
CASE_OF_KINDS(the_limit_of_a_files_size_is_an_error, ALL_KINDS) {
  if (!on_host_backend() && (!on_gpu_backend() || kind != GMM_KIND_HOST)) SKIP("the memory is no file");
  if (kind == GMM_KIND_MANAGED) SKIP("the memory is no file");
  static const rlim_t limits[] = {0, 1, 4096, 1 << 20, (2 << 20) - 1};
  struct rlimit before, low;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  for (unsigned way = 0; way < 3; ++way) {  // nobody expects the signal, it is ignored, a handler counts it
    signal(SIGXFSZ, way == 0 ? SIG_DFL : way == 1 ? SIG_IGN : count_size_signal);
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; ++i) {
      void *block = (void *)0x77;
      low = before;
      low.rlim_cur = limits[i];
      // Nothing is printed while the limit is low: the output may be a file.
      REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
      gmm_result result = try_alloc(1000, GMM_TAG_CURRENT, &block);
      setrlimit(RLIMIT_FSIZE, &before);
      CHECK_MESSAGE(result == GMM_ERROR_OUT_OF_MEMORY, "limit %u: %s: %s", (unsigned)limits[i], gmm_result_name(result),
                    gmm_last_error_message());
      CHECK_MESSAGE(message_has("RLIMIT_FSIZE"), "%s", gmm_last_error_message());
      CHECK(block == NULL);
      sigset_t pending;
      CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0);
      CHECK_EQUAL(stats().reserved_bytes, 0);
      CHECK_EQUAL(stats().live_blocks, 0);
    }
  }
  CHECK_EQUAL(size_signals, 0);
  signal(SIGXFSZ, SIG_DFL);
  CHECK_PATTERN(FILLED(1000, 3), 1000, 3);
}

int main(void) { return run_cases(); }
