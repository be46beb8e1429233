// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume: other threads during a transition, and mixed states.
#include "fault_support.h"

// The actions of other threads during a transition that is held.
static struct {
  gmm_tag tag;
  void *freed[2], *made;
  atomic_int frees_done;
} meanwhile;
static void *free_a_block(void *number) {
  FREE(meanwhile.freed[(uintptr_t)number]);
  atomic_fetch_add(&meanwhile.frees_done, 1);
  return NULL;
}
static void *allocate_a_block(void *unused) {
  (void)unused;
  meanwhile.made = ALLOC_TAG(700000, meanwhile.tag);
  return NULL;
}

// A free of memory on its way waits, and happens once. An allocation is active. A change of the tag does not change the
// pause that has begun. All of this holds whichever way the transition ends.
VMM_CASE(other_threads_use_the_tag_meanwhile) {
  static const unsigned freed[2] = {5, 39};  // a small block and a large one
  const gmm_tag tag = meanwhile.tag = make_tag("used meanwhile", GMM_CONTENTS_HOST);
  for (int way = 0; way < 4; ++way) {
    const bool pausing = way < 2, cancelled = way % 2 == 1;
    OK(gmm_tag_configure(context, tag, DESC(tag_desc, .contents = GMM_CONTENTS_HOST)));
    allocate_blocks(tag, 100);
    if (!pausing) MUST(gmm_pause(context, NULL, NULL));
    blocker hold = BLOCKER;
    hold.answer = cancelled && !pausing;
    gmm_ticket *ticket = start_held(pausing, &tag, &hold);
    CHECK_EQUAL(ticket_info(ticket).state, GMM_TICKET_RUNNING);
    CHECK_EQUAL(ticket_info(ticket).result, GMM_ERROR_NOT_READY);
    RESULT(gmm_ticket_wait(ticket, 5, NULL), GMM_ERROR_NOT_READY);
    pthread_t threads[3];
    atomic_store(&meanwhile.frees_done, 0);
    for (uintptr_t i = 0; i < 3; ++i) {
      if (i < 2) meanwhile.freed[i] = blocks[freed[i]];
      REQUIRE(pthread_create(&threads[i], NULL, i < 2 ? free_a_block : allocate_a_block, (void *)i) == 0);
    }
    OK(gmm_tag_configure(context, tag, DESC(tag_desc, .contents = GMM_CONTENTS_DROP, .priority = 7)));
    sleep_ms(50);
    CHECK_EQUAL(atomic_load(&meanwhile.frees_done), 0);
    if (cancelled && pausing) OK(gmm_ticket_cancel(ticket));  // and else by the answer of the progress function
    let_go(&hold);
    LEAVES_BYTES(gmm_ticket_wait(ticket, GMM_FOREVER, cancelled ? &bytes : NULL),
                 cancelled ? GMM_ERROR_CANCELLED : GMM_OK);
    if (cancelled) CHECK(message_has("as before"));
    OK(gmm_ticket_destroy(ticket));
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; ++i) {
      if (blocks[freed[i]] != meanwhile.made)  // the new block may be at the address of a freed one
        RESULT(gmm_free(context, blocks[freed[i]], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
      blocks[freed[i]] = NULL;
    }
    CHECK_EQUAL(stats().live_blocks, BLOCKS - 2 + 1);
    CHECK_EQUAL(state_of(meanwhile.made), GMM_STATE_ACTIVE);
    write_pattern(meanwhile.made, 700000, 7, GMM_STREAM_DEFAULT);
    const bool is_paused = pausing != cancelled;
    CHECK_EQUAL(tag_info(tag).backup_host_bytes > 0, is_paused);
    CHECK_EQUAL(tag_info(tag).contents, GMM_CONTENTS_DROP);
    CHECK_EQUAL(gmm_resume(context, NULL, NULL), is_paused ? GMM_OK : GMM_UNCHANGED);
    CHECK_PATTERN(meanwhile.made, 700000, 7);
    check_blocks(100);
    OK(gmm_pause(context, NULL, NULL));
    CHECK_EQUAL(tag_info(tag).backup_host_bytes, 0);
    OK(gmm_resume(context, NULL, NULL));
    FREE(meanwhile.made);
    free_blocks();
    NOTHING_STAYS();
    CHECK_EQUAL(stats().paused_bytes, 0);
  }
}

// A thread gives out its cached blocks until the pause has taken the heap's memory out of use.
static bool is_out_of_use(gmm_tag tag) {
  void *block = NULL;
  return gmm_try_alloc(context, 1000, HERE(.tag = tag), &block) == GMM_ERROR_NOT_READY ||
         gmm_try_free(context, block, GMM_STREAM_DEFAULT) != GMM_OK;  // the pause came in between
}
// Memory that comes while a pause waits for the device stays active, and its heap goes on with what is active.
VMM_CASE(an_allocation_does_not_wait_for_the_device_of_a_pause) {
  const gmm_tag tag = make_tag("meanwhile", GMM_CONTENTS_DROP);
  void *before = ALLOC_TAG(100000, tag);
  FREE(ALLOC_TAG(1000, tag));
  gmm_stream stream = open_stream();
  static gate hold;
  gate_close(&hold, stream, GATE_S);
  const gmm_pause_desc pause = one_tag(&tag);
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(context, &pause, &ticket));
  SOON(is_out_of_use(tag));
  void *made = ALLOC_TAG(3 * MIB, tag);
  CHECK_EQUAL(atomic_load(&hold.passed), 0);
  atomic_store(&hold.open, 1);
  ENDS_WITH(ticket, GMM_OK);
  CHECK_EQUAL(state_of(before), GMM_STATE_PAUSED);
  CHECK_EQUAL(state_of(made), GMM_STATE_ACTIVE);
  write_pattern(made, 3 * MIB, 5, GMM_STREAM_DEFAULT);
  for (unsigned i = 0; i < 50; ++i) {
    void *more = ALLOC_TAG(50000, tag);
    CHECK_EQUAL(state_of(more), GMM_STATE_ACTIVE);
    FREE(more);
  }
  OK(resume_of(tag));
  CHECK_PATTERN(made, 3 * MIB, 5);
}

enum { THREADS = 6 };
static struct {
  gmm_tag tag;
  bool pauses;
  gmm_result results[THREADS];
  uint64_t bytes[THREADS];
} many;
static void *pause_or_resume(void *number) {
  const uintptr_t i = (uintptr_t)number;
  const gmm_pause_desc desc = one_tag(&many.tag);
  many.bytes[i] = 0;
  many.results[i] = (many.pauses ? gmm_pause : gmm_resume)(context, &desc, &many.bytes[i]);
  return NULL;
}
// Of several at once one does it and counts its bytes; the others change nothing.
VMM_CASE(several_at_once_do_it_once) {
  many.tag = make_tag("wanted by many", GMM_CONTENTS_HOST);
  allocate_blocks(many.tag, 400);
  OK(gmm_trim(context, NULL, NULL));  // a resume brings no free memory back
  const uint64_t all = tag_info(many.tag).active_bytes;
  for (int round = 0; round < 10; ++round) {
    many.pauses = round % 2 == 0;
    run_threads(THREADS, pause_or_resume);
    int did = 0;
    for (int i = 0; i < THREADS; ++i) {
      did += many.results[i] == GMM_OK;
      CHECK(many.results[i] == GMM_OK || many.results[i] == GMM_UNCHANGED);
      CHECK_EQUAL(many.bytes[i], many.results[i] == GMM_OK ? all : 0);
    }
    CHECK_EQUAL(did, 1);
  }
  check_blocks(400);
}

static struct {
  gmm_tag tag;
  gmm_device device;
  void *block;
} elsewhere;
static void *act_from_elsewhere(void *unused) {
  (void)unused;
  // Makes the other device this thread's, as far as the backend has such a thing.
  void *mine = NULL;
  OK(gmm_alloc(context, 100000,
               DESC(alloc_desc, .kind = GMM_KIND_VMM, .device = elsewhere.device, .tag = elsewhere.tag), &mine));
  OK(gmm_fill(context, mine, 1, 100000, GMM_STREAM_DEFAULT));
  OK(gmm_tag_push(context, elsewhere.tag));
  FREE(elsewhere.block);
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(state_of(mine), GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  OK(gmm_pause(context, NULL, NULL));
  FREE(mine);
  OK(gmm_tag_pop(context));
  return NULL;
}
// Work is still queued on this device when a thread of the other one pauses it.
VMM_CASE(another_thread_and_device) {
  elsewhere.tag = make_tag("of another device", GMM_CONTENTS_HOST);
  elsewhere.device = device_count() > 1 ? (device + 1) % 2 : device;
  allocate_blocks(elsewhere.tag, 500);
  elsewhere.block = blocks[30];
  gmm_stream stream = open_stream();
  static gate hold;
  gate_close(&hold, stream, 0.2);
  OK(gmm_fill(context, blocks[39], 0x5a, block_size(39), stream));
  run_threads(1, act_from_elsewhere);
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  FREE(blocks[31]);  // paused by the other
  blocks[30] = blocks[31] = NULL;
  OK(gmm_resume(context, NULL, NULL));
  CHECK(is_filled(blocks[39], block_size(39), 0x5a, stream));
  write_pattern(blocks[39], block_size(39), 539, GMM_STREAM_DEFAULT);
  check_blocks(500);
}

int main(void) { return run_cases(); }
