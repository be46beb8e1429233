// SPDX-License-Identifier: Apache-2.0
// stream.h, and the stream order of gmm_alloc() and gmm_free(): another stream gets memory only behind the work that
// was queued before the free.
#include "fake_driver.h"

#define SIZE ((uint64_t)60000)
#define LARGE ((uint64_t)5 * MIB)
#define MANY 48

static gmm_stream a, b;

static void open_streams(void) {
  a = open_stream();
  b = open_stream();
  CHECK(a != b);
}
// Blocks of stream a are used and freed, on one or two streams, while the work on them is held up. The held work writes
// into them, which must not be seen in blocks that are taken and filled on another stream before.
static void freed_memory_waits(gmm_stream used, gmm_stream freed_on, gmm_stream taken_on, bool recorded) {
  enum { FREED = 9 };
  void *freed[FREED], *blocks[MANY];
  for (unsigned i = 0; i < FREED; ++i) freed[i] = ALLOC_STREAM(i == 0 ? LARGE : SIZE, a);
  OK(gmm_stream_synchronize(context, a));
  static gate hold;
  gate_close(&hold, used, GATE_S);
  for (unsigned i = 0; i < FREED; ++i) {
    if (recorded) OK(gmm_record_use(context, (char *)freed[i] + i % 2 * 1000, used));
    OK(gmm_fill(context, freed[i], 0xaa, i == 0 ? LARGE : SIZE, used));
    OK(gmm_free(context, freed[i], freed_on));
  }
  CHECK_MESSAGE(atomic_load(&hold.passed) == 0, "gmm_free() waited for the stream");
  for (unsigned i = 0; i < MANY; ++i) {
    blocks[i] = ALLOC_STREAM(i < 2 ? LARGE : i < 4 ? MIB : SIZE, taken_on);
    OK(gmm_fill(context, blocks[i], 0xbb, SIZE, taken_on));
  }
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, used));
  OK(gmm_stream_synchronize(context, taken_on));
  for (unsigned i = 0; i < MANY; ++i) {
    CHECK_MESSAGE(is_filled(blocks[i], SIZE, 0xbb, GMM_STREAM_DEFAULT),
                  "block %u of %u was given out before the other stream was done with it", i, MANY);
  }
  free_here(__LINE__, taken_on, blocks, MANY);
}
// For its stream, for a recorded one, and for another one that it was freed on.
CASE_OF_KINDS(freed_memory_waits_for_its_streams, ALL_KINDS) {
  open_streams();
  freed_memory_waits(a, a, b, false);
  freed_memory_waits(b, a, a, true);
  freed_memory_waits(b, b, a, false);
}

static struct {
  gate hold;
  void *freed[8];
  atomic_int step;
} two;
static void *first_thread(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 8; ++i) two.freed[i] = ALLOC_STREAM(SIZE, GMM_STREAM_PER_THREAD);
  gate_close(&two.hold, GMM_STREAM_PER_THREAD, GATE_S);
  for (unsigned i = 0; i < 8; ++i) {
    OK(gmm_fill(context, two.freed[i], 0xaa, SIZE, GMM_STREAM_PER_THREAD));
    OK(gmm_free(context, two.freed[i], GMM_STREAM_PER_THREAD));
  }
  atomic_store(&two.step, 1);
  while (atomic_load(&two.step) == 1) sleep_ms(1);
  OK(gmm_stream_synchronize(context, GMM_STREAM_PER_THREAD));
  atomic_store(&two.step, 3);
  return NULL;
}
// The value PER_THREAD means another stream on every thread.
CASE_OF_KINDS(per_thread_streams_are_not_one_stream, ALL_KINDS) {
  memset(&two, 0, sizeof two);
  const pthread_t thread = start_thread(first_thread, NULL);
  while (atomic_load(&two.step) == 0) sleep_ms(1);
  void *blocks[MANY];
  for (unsigned i = 0; i < MANY; ++i) {
    blocks[i] = ALLOC_STREAM(SIZE, GMM_STREAM_PER_THREAD);
    OK(gmm_fill(context, blocks[i], 0xbb, SIZE, GMM_STREAM_PER_THREAD));
  }
  atomic_store(&two.hold.open, 1);
  atomic_store(&two.step, 2);
  pthread_join(thread, NULL);
  OK(gmm_stream_synchronize(context, GMM_STREAM_PER_THREAD));
  for (unsigned i = 0; i < MANY; ++i)
    CHECK_MESSAGE(is_filled(blocks[i], SIZE, 0xbb, GMM_STREAM_DEFAULT),
                  "block %u came from a thread whose stream was not done", i);
}

// The driver records no event of one device on a stream of another. Memory that such a stream uses is waited for all
// the same.
VMM_CASE(streams_of_another_device_keep_the_memory_that_they_use) {
  enum { TRIM, DESTROY, PAUSE, COMPACT, WAYS };
  if (!find_fake_driver() || device != 0 || device_count() < 2) SKIP("it needs two devices of the fake driver");
  const gmm_stream other = open_stream_on(1);
  const gmm_tag tag = make_tag("dropped", GMM_CONTENTS_DROP);
  for (int i = 0; i < 2 * WAYS; ++i) {
    const int way = i % WAYS;
    const gmm_stream on = i < WAYS ? GMM_STREAM_DEFAULT : other;
    gmm_heap *heap = HEAP(.tag = tag, .peer_devices = 2, .minimum_extent = 16 * MIB);
    void *block = NULL, *neighbour = take_of(heap, 1 * MIB);
    OK(gmm_heap_alloc(heap, 8 * MIB, 0, 0, on, &block));
    static gate hold;
    gate_close(&hold, other, 0.05);
    if (on != other) OK(gmm_record_use(context, block, other));
    OK(gmm_free(context, block, on));
    if (way == TRIM || way == DESTROY) FREE(neighbour);
    if (way == TRIM) CHECK(gmm_trim(context, NULL, NULL) >= 0);
    if (way == PAUSE) CHECK(pause_of(tag) >= 0);
    if (way == COMPACT)
      CHECK(gmm_compact(context, NULL, DESC(compact_desc, .flags = GMM_COMPACT_LIVE, .heap = heap),
                        DESC(compact_info)) >= 0);
    if (way == DESTROY) OK(gmm_heap_destroy(heap));
    CHECK_EQUAL(atomic_load(&hold.passed), 1);
    OK(gmm_stream_synchronize(context, other));
    if (way == PAUSE || way == COMPACT) FREE(neighbour);
    if (way != DESTROY) OK(gmm_heap_destroy(heap));
  }
}

// A stream that was destroyed or forgotten.
CASE_OF_KINDS(gone_streams_leave_good_memory, ALL_KINDS) {
  for (int forgets = 0; forgets < 2; ++forgets) {
    open_streams();
    void *freed[8], *blocks[MANY];
    for (unsigned i = 0; i < 8; ++i) freed[i] = ALLOC_STREAM(SIZE, a);
    static gate hold;
    gate_close(&hold, a, 0.05);
    for (unsigned i = 0; i < 8; ++i) OK(gmm_fill(context, freed[i], 0xaa, SIZE, a));
    for (unsigned i = 0; i < 8; ++i) OK(gmm_free(context, freed[i], a));
    OK(forgets ? gmm_stream_forget(context, a) : gmm_stream_destroy(context, a));
    CHECK(atomic_load(&hold.passed) == 1);                // it waited
    const gmm_stream next = forgets ? a : open_stream();  // may get the old one's handle
    for (unsigned i = 0; i < MANY; ++i) {
      blocks[i] = ALLOC_STREAM(SIZE, i % 2 ? b : next);
      OK(gmm_fill(context, blocks[i], 0xbb, SIZE, i % 2 ? b : next));
    }
    OK(gmm_stream_synchronize(context, b));
    OK(gmm_stream_synchronize(context, next));
    for (unsigned i = 0; i < MANY; ++i) {
      CHECK(is_filled(blocks[i], SIZE, 0xbb, GMM_STREAM_DEFAULT));
      OK(gmm_free(context, blocks[i], i % 2 ? b : next));
    }
    OK(gmm_stream_destroy(context, next));
    OK(gmm_stream_destroy(context, b));
    FREE(ALLOC(SIZE));
    NOTHING_STAYS();
  }
}

// A driver that does not look at handles crashes on that of a destroyed stream.
CASE_OF_KINDS(streams_may_be_named_after_their_end, ALL_KINDS) {
  open_streams();
  void *freed = ALLOC_STREAM(SIZE, a), *used = ALLOC_STREAM(SIZE, b), *kept = ALLOC_STREAM(SIZE, b);
  void *small = ALLOC_STREAM(100, a), *large = ALLOC_STREAM(8 * MIB, a);
  OK(gmm_record_use(context, used, a));
  const gmm_stream gone = a;
  OK(gmm_stream_destroy(context, gone));
  FREE_ON(gone, freed, small, large);
  OK(gmm_record_use(context, kept, b));
  RESULT(gmm_record_use(context, kept, gone), GMM_ERROR_INVALID_HANDLE);
  FREE_ON(gone, kept);
  FREE_ON(b, used);
  RESULT(gmm_stream_destroy(context, gone), GMM_ERROR_INVALID_HANDLE);
  // Memory that was freed there is not lost, and another stream that wants it asks nobody about the ended one.
  void *blocks[MANY];
  for (unsigned i = 0; i < MANY; ++i) blocks[i] = ALLOC_STREAM(SIZE, b);
  for (unsigned i = 0; i < MANY; ++i) OK(gmm_free(context, blocks[i], b));
  // It does not stand in the way of an allocation of all that the limit allows.
  set_limit(GMM_SCOPE_DEVICE, 0, 16 * MIB);
  FREE(ALLOC(16 * MIB));
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
  NOTHING_STAYS();
  // A driver gives handles out again. A new stream that has it is one like any other.
  gmm_stream made[64];
  unsigned count = 0;
  for (; count < 64 && (count == 0 || made[count - 1] != gone); ++count) made[count] = open_stream();
  OK(gmm_record_use(context, ALLOC_STREAM(SIZE, b), made[count - 1]));
}

static atomic_int order;
static atomic_int order_wrong;
static pthread_t caller;
static void in_order(void *user) {
  if (atomic_fetch_add(&order, 1) != (int)(intptr_t)user) atomic_fetch_add(&order_wrong, 1);
  if (pthread_equal(pthread_self(), caller)) atomic_fetch_add(&order_wrong, 1000);
}
CASE(work_runs_in_order) {
  open_streams();
  const gmm_stream streams[] = {GMM_STREAM_DEFAULT, GMM_STREAM_LEGACY, GMM_STREAM_PER_THREAD, a, b};
  caller = pthread_self();
  for (unsigned s = 0; s < 5; ++s) {
    atomic_store(&order, 0);
    atomic_store(&order_wrong, 0);
    for (intptr_t i = 0; i < 100; ++i) OK(gmm_stream_call(context, streams[s], in_order, (void *)i));
    OK(gmm_stream_synchronize(context, streams[s]));
    CHECK_EQUAL(order, 100);
    CHECK_EQUAL(order_wrong, 0);
  }
}

CASE(streams_run_side_by_side) {
  open_streams();
  static gate hold;
  gate_close(&hold, a, GATE_S);
  // An event and no call, as CUDA runs the calls of all streams on one thread.
  gmm_event *behind = NULL;
  MUST(gmm_event_create(context, EVENT_ON(device), &behind));
  OK(gmm_event_record(behind, 0, b));
  OK(gmm_event_synchronize(behind, 0, GMM_FOREVER));  // does not wait for a
  CHECK_EQUAL(atomic_load(&hold.passed), 0);
  OK(gmm_event_destroy(behind));
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, a));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
}

CASE(events_order_streams) {
  open_streams();
  gmm_event *event = NULL;
  MUST(gmm_event_create(context, EVENT_ON(device), &event));
  uint64_t passed = 7;
  OK(gmm_event_query(event, &passed));
  CHECK_EQUAL(passed, 1);  // never recorded
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  void *x = ALLOC(SIZE), *y = ALLOC(SIZE);
  OK(gmm_fill(context, x, 1, SIZE, a));
  OK(gmm_fill(context, y, 2, SIZE, a));
  OK(gmm_stream_synchronize(context, a));
  static gate hold;
  gate_close(&hold, a, GATE_S);
  OK(gmm_fill(context, x, 9, SIZE, a));
  OK(gmm_event_record(event, 0, a));
  OK(gmm_event_query(event, &passed));
  CHECK_EQUAL(passed, 0);
  OK(gmm_stream_wait_event(context, b, event, 0));
  OK(gmm_copy(context, y, x, SIZE, b));
  RESULT(gmm_event_synchronize(event, 0, 0), GMM_ERROR_NOT_READY);
  RESULT(gmm_event_synchronize(event, 0, 3), GMM_ERROR_NOT_READY);
  CHECK_EQUAL(atomic_load(&hold.passed), 0);  // neither waited
  atomic_store(&hold.open, 1);
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  OK(gmm_event_query(event, &passed));
  CHECK_EQUAL(passed, 1);
  OK(gmm_event_synchronize(event, 0, 0));
  OK(gmm_stream_synchronize(context, b));
  CHECK(is_filled(y, SIZE, 9, GMM_STREAM_DEFAULT));

  gate_close(&hold, a, GATE_S);  // an event may be recorded again, and destroyed while a stream waits for it
  OK(gmm_fill(context, x, 11, SIZE, a));
  OK(gmm_event_record(event, 0, a));
  OK(gmm_stream_wait_event(context, b, event, 0));
  OK(gmm_copy(context, y, x, SIZE, b));
  OK(gmm_event_destroy(event));
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, b));
  CHECK(is_filled(y, SIZE, 11, GMM_STREAM_DEFAULT));
  OK(gmm_event_destroy(NULL));
}

CASE_OF_KINDS(copies_and_fills_keep_to_their_ranges, ALL_KINDS) {
  char *block = ALLOC(5000);
  static char bytes[20000];
  OK(gmm_copy(context, block, bytes, 5000, GMM_STREAM_DEFAULT));
  OK(gmm_copy(context, block, bytes, 0, GMM_STREAM_DEFAULT));
  OK(gmm_fill(context, block, 0, 0, GMM_STREAM_DEFAULT));
  write_pattern(block, 5000, 2, GMM_STREAM_DEFAULT);
  OK(gmm_fill(context, block + 100, 0x77, 1, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK(is_filled(block + 100, 1, 0x77, GMM_STREAM_DEFAULT));
  write_pattern(block + 3000, 2000, 8, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, 100, 2);
  CHECK_PATTERN(block + 3000, 2000, 8);
}

CASE_OF_KINDS(copies_go_between_all_kinds_and_devices, ALL_KINDS) {
  uint32_t devices = device_count();
  for (uint32_t d = 0; d < devices; ++d) {
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
      gmm_device_info info = {.struct_size = sizeof info};
      OK(gmm_device_query(context, (gmm_device)d, &info));
      if ((info.kinds & (1u << k)) == 0) continue;
      void *from = ALLOC(70000), *to = NULL;
      MUST(gmm_alloc(context, 70000, DESC(alloc_desc, .kind = k, .device = (gmm_device)d), &to));
      write_pattern(from, 70000, 20 + k, GMM_STREAM_DEFAULT);
      gmm_heap *heap = NULL;
      if (!on_host_backend() && kind == GMM_KIND_VMM && k == GMM_KIND_VMM && d != (uint32_t)device) {
        // Two GPUs' VMM memory meets when a heap lets the other device in.
        RESULT(gmm_copy(context, to, from, 70000, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_SUPPORTED);
        FREE(to);
        heap = open_heap(DESC(heap_desc, .kind = k, .device = (gmm_device)d, .peer_devices = 1u << device));
        to = take_of(heap, 70000);
      }
      OK(gmm_copy(context, to, from, 70000, GMM_STREAM_DEFAULT));
      OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
      CHECK_MESSAGE(check_pattern(__LINE__, to, 70000, 20 + k, GMM_STREAM_DEFAULT), "to %s of device %u", kind_name(k),
                    d);
      FREE(from, to);
      OK(gmm_heap_destroy(heap));
    }
  }
}

int main(void) { return run_cases(); }
