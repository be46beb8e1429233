// SPDX-License-Identifier: Apache-2.0
// watch.h: gmm calls the program before memory loses its pages, when contents are back, and when a budget shrinks.
#include "../support/gmm_test.h"

enum { ALL = GMM_WATCH_PREPARE | GMM_WATCH_LOSING | GMM_WATCH_RESTORED | GMM_WATCH_FAILED };
static const uint64_t SIZE = 4 * MIB;

// The events that the watchers of a case received: "aP" means that PREPARE reached the watcher with the name "a".
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;
static char heard[400];

typedef struct listener {
  const char *name;
  gmm_watcher *watcher;
  int32_t answer;       // to PREPARE
  uint32_t held_event;  // in which it waits until it is let go
  atomic_int is_inside, is_let_go;
  void (*act)(struct listener *self, const gmm_watch_info *info);
  gmm_watch_info last;
  const uint8_t *memory;  // whose first byte it looks at in LOSING and RESTORED
  int expected_byte;
} listener;

static const char *take_heard(void) {
  static char text[sizeof heard];
  pthread_mutex_lock(&heard_lock);
  memcpy(text, heard, sizeof text);
  heard[0] = 0;
  pthread_mutex_unlock(&heard_lock);
  return text;
}
static bool has_heard(void) {
  pthread_mutex_lock(&heard_lock);
  const bool has = heard[0] != 0;
  pthread_mutex_unlock(&heard_lock);
  return has;
}
#define HEARD(expected)                                                                                    \
  do {                                                                                                     \
    const char *heard_now = take_heard();                                                                  \
    CHECK_MESSAGE(strcmp(heard_now, expected) == 0, "heard \"%s\", expected \"%s\"", heard_now, expected); \
  } while (0)

static int32_t hear(void *user, const gmm_watch_info *info) {
  CHECK_EQUAL(info->struct_size, sizeof *info);
  listener *self = user;
  const size_t used = strlen(heard);
  pthread_mutex_lock(&heard_lock);
  snprintf(heard + used, sizeof heard - used, "%s%s%c", used != 0 ? " " : "", self->name,
           "PLRFB"[__builtin_ctz(info->event)]);
  self->last = *info;
  pthread_mutex_unlock(&heard_lock);
  CHECK_EQUAL(info->reserved, 0);
  CHECK((info->event == GMM_WATCH_FAILED) == (info->cause != 0));
  if (info->event == self->held_event) {
    atomic_store(&self->is_inside, 1);
    for (double end = now_s() + SOON_S; atomic_load(&self->is_let_go) == 0 && now_s() < end;) sleep_ms(1);
    atomic_store(&self->is_inside, 0);
  }
  if (self->memory != NULL && (info->event == GMM_WATCH_LOSING || info->event == GMM_WATCH_RESTORED)) {
    uint8_t byte = 0;
    OK(gmm_copy(context, &byte, self->memory, 1, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    CHECK_EQUAL(byte, (uint64_t)self->expected_byte);
  }
  if (self->act != NULL) self->act(self, info);
  return info->event == GMM_WATCH_PREPARE ? self->answer : 0;
}

// With further fields of the descriptor.
#define WATCH(of, which, ...)                                                                                  \
  MUST(gmm_watch(context,                                                                                      \
                 DESC(watch_desc, .events = (which), .name = (of)->name, .callback = {hear, of}, __VA_ARGS__), \
                 &(of)->watcher))
static void watch_tag(listener *of, uint32_t events, gmm_tag tag, int32_t order) {
  WATCH(of, events, .tag = tag, .order = order);
}
static void watch_range(listener *of, const void *address, uint64_t size, int32_t order) {
  WATCH(of, ALL, .address = address, .size = size, .order = order);
}
static void *block_of(gmm_tag tag, uint32_t seed) { return FILLED_TAG(SIZE, tag, seed); }
VMM_CASE(watchers_hear_in_their_order) {
  const gmm_tag tag = make_tag("watched", GMM_CONTENTS_HOST), other = make_tag("other", GMM_CONTENTS_HOST);
  uint8_t *block = block_of(tag, 1), *block_of_other = block_of(other, 2);
  listener a = {.name = "a", .memory = block, .expected_byte = pattern_at(0, 1)};
  listener b = {.name = "b"}, c = {.name = "c"}, d = {.name = "d"}, e = {.name = "e"};
  watch_range(&c, block + 100, 1000, 5);
  watch_tag(&b, ALL, tag, -2);
  watch_tag(&a, ALL, tag, -2);  // younger than b
  watch_tag(&d, GMM_WATCH_LOSING, tag, 7);
  watch_tag(&e, ALL, other, 0);
  OK(pause_of(tag));
  HEARD("bP aP cP bL aL cL dL");
  CHECK_EQUAL(c.last.tag, tag);
  CHECK_EQUAL(c.last.device, device);
  CHECK(c.last.address == block + 100 && c.last.size == 1000);
  CHECK(a.last.tag == tag && a.last.address == NULL && a.last.size == 0);
  const uint64_t generation = c.last.generation;
  RESULT(pause_of(tag), GMM_UNCHANGED);
  HEARD("");
  OK(resume_of(tag));
  HEARD("cR aR bR");
  CHECK(c.last.generation != generation);
  CHECK_EQUAL(c.last.generation, query(block).generation);
  RESULT(resume_of(tag), GMM_UNCHANGED);
  HEARD("");
  CHECK_PATTERN(block, SIZE, 1);
  OK(gmm_watcher_destroy(a.watcher));
  OK(gmm_watcher_destroy(c.watcher));
  OK(gmm_pause(context, NULL, NULL));  // every tag
  HEARD("bP eP bL eL dL");
  // In the background.
  gmm_ticket *ticket = NULL;
  MUST(gmm_resume_async(context, NULL, &ticket));
  ENDS_WITH(ticket, GMM_OK);
  HEARD("eR bR");
  CHECK_PATTERN(block_of_other, SIZE, 2);
  FREE(block, block_of_other);
  OK(gmm_watcher_destroy(b.watcher));
  OK(gmm_watcher_destroy(NULL));  // the others are left to the context
}

VMM_CASE(a_veto_leaves_everything_as_before) {
  const gmm_tag tag = make_tag("kept", GMM_CONTENTS_DROP);
  void *block = block_of(tag, 3);
  listener a = {.name = "agrees"}, b = {.name = "refuses", .answer = 7}, c = {.name = "later"};
  watch_tag(&a, ALL, tag, 1);
  watch_tag(&b, ALL, tag, 2);
  watch_tag(&c, ALL, tag, 3);
  const gmm_stats_info before = stats();
  RESULT(pause_of(tag), GMM_ERROR_BUSY);
  CHECK(message_has("\"refuses\"") && message_has("7"));
  HEARD("agreesP refusesP agreesF");
  CHECK_EQUAL(a.last.cause, GMM_ERROR_BUSY);
  CHECK_EQUAL(stats().reserved_bytes, before.reserved_bytes);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 3);
  b.answer = 0;
  OK(pause_of(tag));
  HEARD("agreesP refusesP laterP agreesL refusesL laterL");
  OK(resume_of(tag));
  HEARD("laterR refusesR agreesR");
}

static void *watched_block;
static gmm_heap *some_heap;
static gmm_watcher *other_watcher;
static void try_everything(listener *self, const gmm_watch_info *info) {
  if (info->event == GMM_WATCH_FAILED) return;
  void *made = watched_block;
  RESULT(gmm_alloc(context, 100, NULL, &made), GMM_ERROR_BUSY);
  CHECK(made == NULL);
  RESULT(try_alloc(9 * MIB, GMM_TAG_CURRENT, &made), GMM_ERROR_BUSY);
  RESULT(gmm_alloc(context, 100, HERE(.flags = GMM_ALLOC_DEDICATED), &made), GMM_ERROR_BUSY);
  RESULT(gmm_heap_alloc(some_heap, 100, 0, 0, GMM_STREAM_DEFAULT, &made), GMM_ERROR_BUSY);
  RESULT(gmm_try_alloc(context, 100, NULL, &made), GMM_ERROR_NOT_READY);
  RESULT(gmm_heap_reserve(some_heap, MIB), GMM_ERROR_BUSY);
  RESULT(gmm_pause(context, NULL, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_resume(context, NULL, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_resume_range(context, watched_block, 1, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_move(context, watched_block, GMM_DEVICE_HOST, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_compact(context, NULL, NULL, DESC(compact_info)), GMM_ERROR_BUSY);
  RESULT(gmm_reset(context), GMM_ERROR_BUSY);
  RESULT(gmm_backup_discard(context, NULL, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_heap_destroy(some_heap), GMM_ERROR_BUSY);
  RESULT(gmm_tag_destroy(context, info->tag), GMM_ERROR_BUSY);
  RESULT(gmm_watcher_destroy(self->watcher), GMM_ERROR_BUSY);
  RESULT(gmm_watcher_destroy(other_watcher), GMM_ERROR_BUSY);
  RESULT(gmm_context_release(context), GMM_ERROR_BUSY);
  uint64_t bytes = 0;
  OK(gmm_trim(context, NULL, &bytes));
  CHECK_EQUAL(query(watched_block).state, GMM_STATE_ACTIVE);
}
static void *spare_block;
static void free_a_block(listener *self, const gmm_watch_info *info) {
  if (info->event == GMM_WATCH_PREPARE) {
    // It goes into no cache of this thread, which has caches outside of the callback.
    FREE(spare_block);
    RESULT(gmm_alloc(context, 5000, NULL, &spare_block), GMM_ERROR_BUSY);
  }
  try_everything(self, info);
}

VMM_CASE(the_callback_may_not_allocate_or_operate) {
  const gmm_tag tag = make_tag("inside", GMM_CONTENTS_HOST);
  watched_block = block_of(tag, 6);
  listener a = {.name = "a", .act = free_a_block}, b = {.name = "b"};
  some_heap = HEAP();
  void *cached = NULL;
  MUST(gmm_alloc(context, 5000, NULL, &spare_block));
  MUST(gmm_alloc(context, 5000, NULL, &cached));
  watch_tag(&a, ALL, tag, 0);
  watch_tag(&b, ALL, tag, 1);
  other_watcher = b.watcher;
  OK(pause_of(tag));
  OK(resume_of(tag));
  HEARD("aP bP aL bL bR aR");
  void *made = NULL;
  OK(gmm_try_free(context, cached, GMM_STREAM_DEFAULT));  // the caches are back
  OK(gmm_try_alloc(context, 5000, NULL, &made));
  FREE(made);
  CHECK_PATTERN(watched_block, SIZE, 6);
  CHECK(spare_block == NULL);
}

// --- Operations other than pause and resume --------------------------------------------------------------------------

// Each a driver allocation of its own, with contents of the seed and of the one after it.
static void make_two(void *pair[2], gmm_tag tag, unsigned seed) {
  for (unsigned i = 0; i < 2; ++i) pair[i] = FILLED_ALONE(SIZE, tag, seed + i);
}

VMM_CASE(a_part_comes_back_alone) {
  const gmm_tag tag = make_tag("parts", GMM_CONTENTS_HOST);
  void *blocks[2];
  make_two(blocks, tag, 7);
  listener a = {.name = "a"}, b = {.name = "b"}, all = {.name = "all"};
  watch_range(&a, blocks[0], SIZE, 0);
  watch_range(&b, blocks[1], 1, 1);
  watch_tag(&all, ALL, tag, 2);
  OK(pause_of(tag));
  HEARD("aP bP allP aL bL allL");
  OK(gmm_resume_range(context, blocks[1], 1, NULL));
  HEARD("allR bR");
  OK(pause_of(tag));
  HEARD("bP allP bL allL");  // the other one has no pages to lose
  OK(resume_of(tag));
  HEARD("allR bR aR");
  for (unsigned i = 0; i < 2; ++i) CHECK_PATTERN(blocks[i], SIZE, 7 + i);
}

VMM_CASE(a_resume_without_memory_is_reported_once) {
  const gmm_tag tag = make_tag("poor", GMM_CONTENTS_HOST);
  void *block = block_of(tag, 8);
  listener a = {.name = "a"};
  watch_tag(&a, ALL, tag, 0);
  OK(pause_of(tag));
  HEARD("aP aL");
  set_limit(GMM_SCOPE_TAG, tag, 1);
  RESULT(resume_of(tag), GMM_ERROR_LIMIT_EXCEEDED);
  HEARD("aF");
  CHECK_EQUAL(a.last.cause, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(query(block).state, GMM_STATE_PAUSED);
  set_limit(GMM_SCOPE_TAG, tag, GMM_NO_LIMIT);
  OK(resume_of(tag));
  HEARD("aR");
  CHECK_PATTERN(block, SIZE, 8);
}

static int32_t stop_it(void *user, uint64_t done, uint64_t total) {
  (void)user, (void)done, (void)total;
  return 1;
}
VMM_CASE(a_cancelled_pause_is_reported) {
  const gmm_tag tag = make_tag("cancelled", GMM_CONTENTS_HOST);
  void *block = block_of(tag, 9);
  listener a = {.name = "a"}, b = {.name = "b"};
  watch_tag(&a, ALL, tag, 0);
  watch_tag(&b, GMM_WATCH_FAILED, tag, 1);
  RESULT(gmm_pause(context, DESC(pause_desc, .tags = &tag, .tag_count = 1, .progress = {stop_it, NULL}), NULL),
         GMM_ERROR_CANCELLED);
  HEARD("aP aL bF aF");
  CHECK_EQUAL(b.last.cause, GMM_ERROR_CANCELLED);
  CHECK_PATTERN(block, SIZE, 9);
}

VMM_CASE(a_move_is_reported) {
  const gmm_tag tag = make_tag("moved", GMM_CONTENTS_HOST);
  void *blocks[2];
  make_two(blocks, tag, 10);
  listener a = {.name = "a", .memory = blocks[0], .expected_byte = pattern_at(0, 10)};
  listener b = {.name = "b"}, all = {.name = "all"};
  watch_range(&a, blocks[0], SIZE, 0);
  watch_range(&b, blocks[1], SIZE, 1);
  watch_tag(&all, ALL, tag, 2);
  const gmm_result moved = gmm_move(context, blocks[0], GMM_DEVICE_HOST, NULL);
  if (moved == GMM_ERROR_NOT_SUPPORTED) {
    HEARD("aP allP aL allL allF aF");
  } else {
    RESULT(moved, GMM_OK);
    HEARD("aP allP aL allL allR aR");
    RESULT(gmm_move(context, blocks[0], GMM_DEVICE_HOST, NULL), GMM_UNCHANGED);
    HEARD("");
    a.answer = 1;
    RESULT(gmm_move(context, blocks[0], device, NULL), GMM_ERROR_BUSY);
    CHECK(message_has("gmm_move") && message_has("\"a\""));
    HEARD("aP");
    a.answer = 0;
    OK(gmm_move(context, blocks[0], device, NULL));
    HEARD("aP allP aL allL allR aR");
  }
  void *shared = ALLOC_TAG(1000, tag);  // it shares its extent, so it cannot move: no watcher hears of it
  RESULT(gmm_move(context, shared, GMM_DEVICE_HOST, NULL), GMM_ERROR_BUSY);
  HEARD("");
  FREE(shared);
  for (unsigned i = 0; i < 2; ++i) CHECK_PATTERN(blocks[i], SIZE, 10 + i);
}

VMM_CASE(a_compaction_of_live_blocks_is_reported) {
  const gmm_tag tag = make_tag("compacted", GMM_CONTENTS_HOST);
  void *blocks[4];
  some_heap = HEAP(.tag = tag, .minimum_extent = 4 * SIZE);
  MUST(gmm_heap_reserve(some_heap, 4 * SIZE));
  for (unsigned i = 0; i < 4; ++i) {
    blocks[i] = take_of(some_heap, SIZE);
    write_pattern(blocks[i], SIZE, 20 + i, GMM_STREAM_DEFAULT);
  }
  OK(gmm_heap_reserve(some_heap, 0));
  for (unsigned i = 0; i < 4; i += 2) FREE(blocks[i]);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  listener a = {.name = "a", .memory = blocks[1], .expected_byte = pattern_at(0, 21)}, b = {.name = "b"};
  watch_range(&a, blocks[1], SIZE, 0);
  watch_tag(&b, ALL, make_tag("elsewhere", GMM_CONTENTS_DROP), 1);
  gmm_compact_desc work = {.struct_size = sizeof work, .heap = some_heap};
  gmm_compact_info info = {.struct_size = sizeof info};
  CHECK(gmm_compact(context, NULL, &work, &info) >= 0);  // without the flag live blocks keep their pages
  HEARD("");
  work.flags = GMM_COMPACT_LIVE;
  a.answer = 1;
  RESULT(gmm_compact(context, NULL, &work, &info), GMM_ERROR_BUSY);
  CHECK(message_has("gmm_compact"));
  HEARD("aP");
  a.answer = 0;
  OK(gmm_compact(context, NULL, &work, &info));
  HEARD("aP aL aR");
  CHECK(info.released_bytes != 0);
  for (unsigned i = 1; i < 4; i += 2) CHECK_PATTERN(blocks[i], SIZE, 20 + i);
}

// --- Threads ---------------------------------------------------------------------------------------------------------

static atomic_int has_returned;
static gmm_tag threads_tag;
static void *pause_on_thread(void *result) {
  *(gmm_result *)result = pause_of(threads_tag);
  return NULL;
}
static void *destroy_on_thread(void *watcher) {
  OK(gmm_watcher_destroy(watcher));
  atomic_store(&has_returned, 1);
  return NULL;
}

VMM_CASE(the_end_of_a_watch_waits_for_its_call) {
  threads_tag = make_tag("ended", GMM_CONTENTS_HOST);
  void *block = block_of(threads_tag, 12);
  listener a = {.name = "a", .held_event = GMM_WATCH_PREPARE}, b = {.name = "b"};
  watch_tag(&a, ALL, threads_tag, 0);
  watch_tag(&b, ALL, threads_tag, 1);
  gmm_result result = GMM_ERROR_NOT_READY;
  pthread_t pausing, ending;
  atomic_store(&has_returned, 0);
  REQUIRE(pthread_create(&pausing, NULL, pause_on_thread, &result) == 0);
  SOON(atomic_load(&a.is_inside) == 1);
  REQUIRE(pthread_create(&ending, NULL, destroy_on_thread, a.watcher) == 0);
  // The memory is usable until then, and allocations of the tag go on: no lock of the heap is held.
  void *more = ALLOC_TAG(SIZE, threads_tag);
  FREE(more);
  sleep_ms(20);
  CHECK_EQUAL(atomic_load(&has_returned), 0);
  atomic_store(&a.is_let_go, 1);
  pthread_join(ending, NULL);
  pthread_join(pausing, NULL);
  RESULT(result, GMM_OK);
  HEARD("aP bP bL");
  OK(resume_of(threads_tag));
  HEARD("bR");
  CHECK_PATTERN(block, SIZE, 12);
}

VMM_CASE(pauses_at_once_call_their_own_watchers) {
  threads_tag = make_tag("held", GMM_CONTENTS_HOST);
  const gmm_tag other = make_tag("other", GMM_CONTENTS_HOST);
  void *block = block_of(threads_tag, 13), *block_of_other = block_of(other, 14);
  listener a = {.name = "a", .held_event = GMM_WATCH_PREPARE}, b = {.name = "b"};
  watch_tag(&a, ALL, threads_tag, 0);
  watch_tag(&b, ALL, other, 0);
  gmm_result result = GMM_ERROR_NOT_READY;
  pthread_t pausing;
  REQUIRE(pthread_create(&pausing, NULL, pause_on_thread, &result) == 0);
  SOON(atomic_load(&a.is_inside) == 1);
  OK(pause_of(other));
  OK(resume_of(other));
  HEARD("aP bP bL bR");
  atomic_store(&a.is_let_go, 1);
  pthread_join(pausing, NULL);
  RESULT(result, GMM_OK);
  OK(resume_of(threads_tag));
  HEARD("aL aR");
  CHECK_PATTERN(block, SIZE, 13);
  FREE(block, block_of_other);
}

// Watchers begin and end while memory pauses and resumes. Each hears PREPARE before LOSING, and RESTORED at the end of
// what it lost.
static atomic_int phases_wrong, rounds_done;
static int32_t follow(void *user, const gmm_watch_info *info) {
  uint32_t *last = user;
  const bool fits = info->event == GMM_WATCH_PREPARE    ? *last == 0 || *last == GMM_WATCH_RESTORED
                    : info->event == GMM_WATCH_LOSING   ? *last == GMM_WATCH_PREPARE
                    : info->event == GMM_WATCH_RESTORED ? *last == 0 || *last == GMM_WATCH_LOSING
                                                        : true;
  if (!fits) atomic_fetch_add(&phases_wrong, 1);
  *last = info->event;
  return 0;
}
static void *begin_and_end(void *unused) {
  (void)unused;
  while (atomic_load(&rounds_done) == 0) {
    uint32_t last = 0;
    gmm_watcher *watcher = NULL;
    OK(gmm_watch(context, DESC(watch_desc, .events = ALL, .tag = threads_tag, .callback = {follow, &last}), &watcher));
    sleep_ms(1);
    OK(gmm_watcher_destroy(watcher));
  }
  return NULL;
}
VMM_CASE(watchers_come_and_go_during_pauses) {
  threads_tag = make_tag("busy", GMM_CONTENTS_HOST);
  void *block = block_of(threads_tag, 13);
  pthread_t threads[2];
  atomic_store(&rounds_done, 0);
  atomic_store(&phases_wrong, 0);
  for (unsigned i = 0; i < 2; ++i) REQUIRE(pthread_create(&threads[i], NULL, begin_and_end, NULL) == 0);
  for (unsigned i = 0; i < 50; ++i) {
    OK(pause_of(threads_tag));
    OK(resume_of(threads_tag));
  }
  atomic_store(&rounds_done, 1);
  for (unsigned i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  CHECK_EQUAL(atomic_load(&phases_wrong), 0);
  CHECK_PATTERN(block, SIZE, 13);
}

// --- Devices and budgets ---------------------------------------------------------------------------------------------

CASE(one_pause_of_two_devices_is_one_event) {
  if (device_count() < 2) SKIP("there is one device");
  const gmm_tag tag = make_tag("both", GMM_CONTENTS_HOST);
  void *blocks[2];
  listener each[2] = {{.name = "0"}, {.name = "1"}}, all = {.name = "all"};
  for (int i = 0; i < 2; ++i) {
    MUST(gmm_alloc(context, SIZE, DESC(alloc_desc, .kind = GMM_KIND_VMM, .device = i, .tag = tag), &blocks[i]));
    watch_range(&each[i], blocks[i], SIZE, 1);
  }
  watch_tag(&all, ALL, tag, 0);
  OK(pause_of(tag));
  HEARD("allP 0P 1P allL 0L 1L");
  CHECK(each[0].last.device == 0 && each[1].last.device == 1);
  OK(resume_of(tag));
  HEARD("1R 0R allR");
}

static gmm_tag budget_tag;
static void pause_in_budget(listener *self, const gmm_watch_info *info) {
  (void)self;
  if (info->event != GMM_WATCH_BUDGET) return;
  CHECK(info->tag == 0 && info->address == NULL && info->device == device);
  void *made = NULL;
  RESULT(gmm_alloc(context, 100, NULL, &made), GMM_ERROR_BUSY);
  CHECK(pause_of(budget_tag) >= 0);  // what a program does then
}
static uint64_t budget(void) {
  gmm_device_info info = {.struct_size = sizeof info};
  OK(gmm_device_query(context, device, &info));
  return info.budget_bytes;
}
VMM_CASE(a_smaller_budget_is_reported_once) {
  budget_tag = make_tag("spare", GMM_CONTENTS_HOST);
  void *block = block_of(budget_tag, 14);
  listener a = {.name = "a", .act = pause_in_budget};
  const uint64_t whole = budget();
  REQUIRE(whole > 200 * MIB);
  const uint64_t wanted = on_host_backend() ? 200 * MIB : whole - 64 * MIB;
  WATCH(&a, GMM_WATCH_BUDGET, .device = device, .budget_bytes = wanted);
  // A device of the host backend is the context's own, so a limit takes memory away there, and another context else.
  // It falls twice. A fall counts when a look has seen the end of the one before, so the second may take some tries.
  unsigned falls = 0;
  for (double end = now_s() + SOON_S; falls < 2 && now_s() < end;) {
    gmm_context *other = NULL;
    void *taken = NULL;
    if (on_host_backend()) {
      set_limit(GMM_SCOPE_DEVICE, 0, 100 * MIB);
    } else {
      other = open_context(0);
      MUST(gmm_alloc(other, 128 * MIB, DESC(alloc_desc, .kind = GMM_KIND_DEVICE, .device = device), &taken));
    }
    if (falls == 0) SOON(has_heard());
    sleep_ms(450);  // two looks later it has not come again
    if (has_heard()) {
      ++falls;
      HEARD("aB");
      CHECK(a.last.budget_bytes < wanted);
      SOON(query(block).state == GMM_STATE_PAUSED);
      OK(resume_of(budget_tag));
    }
    if (on_host_backend()) {
      set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
    } else {
      OK(gmm_context_release(other));
    }
    sleep_ms(450);
  }
  CHECK_EQUAL(falls, 2);
  CHECK_PATTERN(block, SIZE, 14);
  OK(gmm_watcher_destroy(a.watcher));
}

VMM_CASE(a_watcher_may_pause_what_it_watches) {
  budget_tag = make_tag("own", GMM_CONTENTS_HOST);
  void *block = block_of(budget_tag, 15);
  listener a = {.name = "own", .act = pause_in_budget};
  // The budget is below that at once.
  WATCH(&a, ALL | GMM_WATCH_BUDGET, .tag = budget_tag, .device = device, .budget_bytes = GMM_NO_LIMIT);
  SOON(query(block).state == GMM_STATE_PAUSED);
  OK(gmm_watcher_destroy(a.watcher));
  HEARD("ownB ownP ownL");
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, SIZE, 15);
}

int main(void) { return run_cases(); }
