// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume: other threads during a transition, and mixed states.
#include "fault_support.h"

typedef struct helper {
  pthread_t thread;
  void *block;
  gmm_tag tag;
  gmm_device on;
  gmm_result result;
  uint64_t bytes;
  atomic_int done;
} helper;

static void *free_a_block(void *argument) {
  helper *self = argument;
  self->result = gmm_free(context, self->block, GMM_STREAM_DEFAULT);
  atomic_store(&self->done, 1);
  return NULL;
}
static void *allocate_a_block(void *argument) {
  helper *self = argument;
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = self->tag;
  self->result = gmm_alloc(context, 700000, &desc, &self->block);
  atomic_store(&self->done, 1);
  return NULL;
}

// A free of memory that is on its way waits; it happens once, whichever way the transition ends.
VMM_CASE(a_free_waits_for_the_transition) {
  static const unsigned freed[2] = {5, 39};  // a small block and a large one
  for (int way = 0; way < 4; ++way) {
    const bool pausing = way < 2, cancelled = way % 2 == 1;
    gmm_tag tag = make_tag("freed meanwhile", GMM_CONTENTS_HOST);
    allocate_blocks(tag, 100);
    if (!pausing) MUST(gmm_pause(context, NULL, NULL));
    blocker hold = BLOCKER;
    hold.answer = cancelled;
    gmm_ticket *ticket = start_held(pausing, &tag, &hold);
    helper helpers[2];
    for (int i = 0; i < 2; ++i) {
      helpers[i] = (helper){.block = blocks[freed[i]]};
      REQUIRE(pthread_create(&helpers[i].thread, NULL, free_a_block, &helpers[i]) == 0);
    }
    sleep_ms(50);
    for (int i = 0; i < 2; ++i) CHECK_EQUAL(atomic_load(&helpers[i].done), 0);
    let_go(&hold);
    RESULT(gmm_ticket_wait(ticket, UINT64_MAX, NULL), cancelled ? GMM_ERROR_CANCELLED : GMM_OK);
    OK(gmm_ticket_destroy(ticket));
    for (int i = 0; i < 2; ++i) {
      pthread_join(helpers[i].thread, NULL);
      CHECK_EQUAL(helpers[i].result, GMM_OK);
      RESULT(gmm_free(context, blocks[freed[i]], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
      blocks[freed[i]] = NULL;
    }
    CHECK_EQUAL(stats().live_blocks, BLOCKS - 2);
    gmm_result back = gmm_resume(context, NULL, NULL);
    CHECK_EQUAL(back, pausing != cancelled ? GMM_OK : GMM_UNCHANGED);
    check_blocks(100);
    free_blocks();
    OK(gmm_trim(context, NULL, NULL));
    CHECK_EQUAL(stats().reserved_bytes, 0);
    CHECK_EQUAL(stats().paused_bytes, 0);
  }
}

VMM_CASE(an_allocation_meanwhile_is_active) {
  for (int pausing = 1; pausing >= 0; --pausing) {
    gmm_tag tag = make_tag("grows meanwhile", GMM_CONTENTS_HOST);
    allocate_blocks(tag, 200);
    if (!pausing) MUST(gmm_pause(context, NULL, NULL));
    blocker hold = BLOCKER;
    gmm_ticket *ticket = start_held(pausing, &tag, &hold);
    helper one = {.tag = tag};
    REQUIRE(pthread_create(&one.thread, NULL, allocate_a_block, &one) == 0);
    sleep_ms(20);
    let_go(&hold);
    pthread_join(one.thread, NULL);
    CHECK_EQUAL(one.result, GMM_OK);
    OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
    OK(gmm_ticket_destroy(ticket));
    CHECK_EQUAL(state_of(one.block), GMM_STATE_ACTIVE);
    write_pattern(one.block, 700000, 7, GMM_STREAM_DEFAULT);
    CHECK_EQUAL(gmm_resume(context, NULL, NULL), pausing ? GMM_OK : GMM_UNCHANGED);
    CHECK_PATTERN(one.block, 700000, 7);
    check_blocks(200);
    FREE(one.block);
    free_blocks();
  }
}

// What a pause began with holds to its end, and what is paused stays kept as it was.
VMM_CASE(a_tag_changes_meanwhile) {
  gmm_tag tag = make_tag("retagged", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 300);
  blocker hold = BLOCKER;
  gmm_ticket *ticket = start_held(true, &tag, &hold);
  gmm_tag_desc drops = {.struct_size = sizeof drops, .contents = GMM_CONTENTS_DROP, .priority = 7};
  OK(gmm_tag_configure(context, tag, &drops));
  let_go(&hold);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
  CHECK(tag_info(tag).backup_host_bytes > 0);
  CHECK_EQUAL(tag_info(tag).contents, GMM_CONTENTS_DROP);
  OK(gmm_resume(context, NULL, NULL));
  check_blocks(300);
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(tag_info(tag).backup_host_bytes, 0);
  OK(gmm_resume(context, NULL, NULL));
}

// --- twice and mixed ---------------------------------------------------------------------------------------------
static atomic_int start_all;
static void *pause_or_resume(void *argument) {
  helper *self = argument;
  gmm_pause_desc desc = one_tag(&self->tag);
  while (atomic_load(&start_all) == 0) sleep_ms(0);
  self->bytes = 0;
  self->result =
      self->block != NULL ? gmm_pause(context, &desc, &self->bytes) : gmm_resume(context, &desc, &self->bytes);
  return NULL;
}

// Of several at once one does it and tells its bytes; the others change nothing.
VMM_CASE(several_at_once_do_it_once) {
  enum { THREADS = 6 };
  gmm_tag tag = make_tag("wanted by many", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 400);
  OK(gmm_trim(context, NULL, NULL));  // a resume brings no free memory back
  const uint64_t all = tag_info(tag).active_bytes;
  for (int round = 0; round < 10; ++round) {
    helper helpers[THREADS];
    atomic_store(&start_all, 0);
    for (int i = 0; i < THREADS; ++i) {
      helpers[i] = (helper){.tag = tag, .block = round % 2 == 0 ? blocks[0] : NULL};
      REQUIRE(pthread_create(&helpers[i].thread, NULL, pause_or_resume, &helpers[i]) == 0);
    }
    atomic_store(&start_all, 1);
    int did = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < THREADS; ++i) {
      pthread_join(helpers[i].thread, NULL);
      did += helpers[i].result == GMM_OK;
      bytes += helpers[i].bytes;
      CHECK(helpers[i].result == GMM_OK || (helpers[i].result == GMM_UNCHANGED && helpers[i].bytes == 0));
    }
    CHECK_EQUAL(did, 1);
    CHECK_EQUAL(bytes, all);
  }
  check_blocks(400);
}

// "a", then both, then all: torch_memory_saver ends the process here.
VMM_CASE(mixed_states_change_only_the_rest) {
  gmm_tag tags[2] = {make_tag("a", GMM_CONTENTS_HOST), make_tag("b", GMM_CONTENTS_FILE)};
  void *one = FILLED_TAG(5 * MIB, tags[0], 1), *two = FILLED_TAG(9 * MIB, tags[1], 2);
  const uint64_t first = tag_info(tags[0]).active_bytes, second = tag_info(tags[1]).active_bytes;
  gmm_pause_desc a = one_tag(&tags[0]), both = {.struct_size = sizeof both, .tags = tags, .tag_count = 2};
  uint64_t bytes = 0;
  OK(gmm_pause(context, &a, &bytes));
  CHECK_EQUAL(bytes, first);
  OK(gmm_pause(context, &both, &bytes));
  CHECK_EQUAL(bytes, second);
  RESULT(gmm_pause(context, NULL, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  const gmm_tag thrice[3] = {tags[0], tags[0], tags[0]};  // named more than once is once
  gmm_pause_desc repeated = {.struct_size = sizeof repeated, .tags = thrice, .tag_count = 3};
  OK(gmm_resume(context, &repeated, &bytes));
  CHECK_EQUAL(bytes, first);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, second);
  RESULT(gmm_resume(context, &both, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_PATTERN(one, 5 * MIB, 1);
  CHECK_PATTERN(two, 9 * MIB, 2);
}

// --- from another thread and with another device ---------------------------------------------------------------------
static void *act_from_elsewhere(void *argument) {
  helper *self = argument;
  // Makes the other device this thread's, as far as the backend has such a thing.
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = self->on, .tag = self->tag};
  void *mine = NULL;
  OK(gmm_alloc(context, 100000, &desc, &mine));
  OK(gmm_fill(context, mine, 1, 100000, GMM_STREAM_DEFAULT));
  OK(gmm_tag_push(context, self->tag));
  FREE(self->block);
  OK(gmm_pause(context, NULL, &self->bytes));
  CHECK_EQUAL(state_of(mine), GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  OK(gmm_pause(context, NULL, NULL));
  FREE(mine);
  OK(gmm_tag_pop(context));
  self->result = GMM_OK;
  return NULL;
}
VMM_CASE(another_thread_and_device) {
  gmm_tag tag = make_tag("of another device", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 500);
  // Work that is still queued on this device when a thread of the other one pauses it.
  gmm_stream stream = open_stream();
  gate hold;
  gate_close(&hold, stream, 0.2);
  OK(gmm_fill(context, blocks[39], 0x5a, block_size(39), stream));
  helper other = {.block = blocks[30], .tag = tag, .on = device_count() > 1 ? (device + 1) % 2 : device, .result = 99};
  blocks[30] = NULL;
  REQUIRE(pthread_create(&other.thread, NULL, act_from_elsewhere, &other) == 0);
  pthread_join(other.thread, NULL);
  CHECK_EQUAL(other.result, GMM_OK);
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  FREE(blocks[31]);  // paused by the other
  blocks[31] = NULL;
  OK(gmm_resume(context, NULL, NULL));
  uint8_t *bytes = malloc(block_size(39));
  REQUIRE(bytes != NULL);
  OK(gmm_copy(context, bytes, blocks[39], block_size(39), stream));
  OK(gmm_stream_synchronize(context, stream));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < block_size(39); ++i) wrong += bytes[i] != 0x5a;
  CHECK_EQUAL(wrong, 0);
  free(bytes);
  write_pattern(blocks[39], block_size(39), 539, GMM_STREAM_DEFAULT);
  check_blocks(500);
  OK(gmm_stream_destroy(context, stream));
}

// Dropped contents need no copy that would wait by the way: the device itself is waited for.
VMM_CASE(work_in_flight_ends_before_memory_goes) {
  gmm_tag tag = make_tag("busy", GMM_CONTENTS_DROP);
  void *block = ALLOC_TAG(8 * MIB, tag);
  gmm_stream streams[3];
  gate gates[3];
  for (int i = 0; i < 3; ++i) {
    streams[i] = open_stream();
    gate_close(&gates[i], streams[i], 0.05 + 0.05 * i);
    OK(gmm_fill(context, block, i, 8 * MIB, streams[i]));
  }
  OK(gmm_pause(context, NULL, NULL));
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(atomic_load(&gates[i].passed), 1);
  CHECK_EQUAL(state_of(block), GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  for (int i = 0; i < 3; ++i) OK(gmm_stream_synchronize(context, streams[i]));  // nothing touched what was away
  write_pattern(block, 8 * MIB, 3, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, 8 * MIB, 3);
  FREE(block);
  for (int i = 0; i < 3; ++i) OK(gmm_stream_destroy(context, streams[i]));
}

int main(void) { return run_cases(); }
