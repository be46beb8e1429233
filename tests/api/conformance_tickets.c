// SPDX-License-Identifier: Apache-2.0
// pause.h: a thread of the library pauses and resumes.
#include "fault_support.h"

static gmm_ticket_info ticket_info(gmm_ticket *ticket) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  OK(gmm_ticket_query(ticket, &info));
  return info;
}

VMM_CASE(a_ticket_ends_with_what_it_came_to) {
  gmm_tag tag = make_tag("asleep", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 100);
  OK(gmm_trim(context, NULL, NULL));  // a resume brings no free memory back
  gmm_ticket *ticket = NULL;
  uint64_t went = 0, came = 0;
  {
    // The descriptor and its tags are copied.
    gmm_tag tags[1] = {tag};
    gmm_pause_desc desc = one_tag(tags);
    MUST(gmm_pause_async(context, &desc, &ticket));
    tags[0] = 3999;
    desc.tags = NULL;
  }
  OK(gmm_ticket_wait(ticket, UINT64_MAX, &went));
  gmm_ticket_info info = ticket_info(ticket);
  CHECK_EQUAL(info.state, GMM_TICKET_DONE);
  CHECK_EQUAL(info.result, GMM_OK);
  CHECK_EQUAL(info.bytes, went);
  CHECK(info.total_bytes > 0 && info.copied_bytes == info.total_bytes);
  OK(gmm_ticket_wait(ticket, 0, NULL));
  OK(gmm_ticket_cancel(ticket));  // too late
  OK(gmm_ticket_destroy(ticket));
  CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_PAUSED);
  MUST(gmm_resume_async(context, NULL, &ticket));
  OK(gmm_resume_wait(context, blocks[39], block_size(39), UINT64_MAX));
  CHECK_PATTERN(blocks[39], block_size(39), 139);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, &came));
  CHECK_EQUAL(came, went);
  OK(gmm_ticket_destroy(ticket));
  check_blocks(100);
  // An operation without work is reported, too.
  MUST(gmm_resume_async(context, NULL, &ticket));
  RESULT(gmm_ticket_wait(ticket, UINT64_MAX, &came), GMM_UNCHANGED);
  OK(gmm_ticket_destroy(ticket));
  free_blocks();
  OK(gmm_ticket_destroy(NULL));
}

VMM_CASE(a_ticket_can_be_cancelled) {
  gmm_tag tag = make_tag("cancelled", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 200);
  for (int pausing = 1; pausing >= 0; --pausing) {
    blocker hold = BLOCKER;
    gmm_ticket *ticket = start_held(pausing, &tag, &hold);
    CHECK_EQUAL(ticket_info(ticket).state, GMM_TICKET_RUNNING);
    CHECK_EQUAL(ticket_info(ticket).result, GMM_ERROR_NOT_READY);
    RESULT(gmm_ticket_wait(ticket, 5, NULL), GMM_ERROR_NOT_READY);
    OK(gmm_ticket_cancel(ticket));
    let_go(&hold);
    uint64_t bytes = 77;
    RESULT(gmm_ticket_wait(ticket, UINT64_MAX, &bytes), GMM_ERROR_CANCELLED);
    CHECK_EQUAL(bytes, 77);
    CHECK(message_has("as before"));
    OK(gmm_ticket_destroy(ticket));
    CHECK_EQUAL(query(blocks[5]).state, pausing ? GMM_STATE_ACTIVE : GMM_STATE_PAUSED);
    if (pausing) {
      check_blocks(200);
      OK(gmm_pause(context, NULL, NULL));
    }
  }
  OK(gmm_resume(context, NULL, NULL));
  check_blocks(200);
}

VMM_CASE(a_ticket_outlives_the_last_reference) {
  gmm_context *own = open_context(1);
  gmm_tag tag = 0;
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_HOST};
  MUST(gmm_tag_create(own, "left", &desc, &tag));
  gmm_alloc_desc alloc = {.struct_size = sizeof alloc, .kind = GMM_KIND_VMM, .tag = tag};
  void *block = NULL;
  MUST(gmm_alloc(own, 8 * MIB, &alloc, &block));
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(own, NULL, &ticket));
  OK(gmm_context_release(own));
  ENDS_WITH(ticket, GMM_OK);
}

// Threads pause and resume tags of their own at the same time. Their contents share every tier of the backup.
enum { ROUNDS = 6, OWN = 12 };
typedef struct {
  gmm_tag tag;
  uint32_t seed;
  void *blocks[OWN];
  atomic_int *failures;
} owner;
static uint64_t own_size(unsigned i) { return i < 8 ? 1000 + i * 40000 : (2 + i) * MIB / 2; }
static void *pause_and_resume(void *user) {
  owner *self = user;
  const gmm_pause_desc desc = one_tag(&self->tag);
  for (unsigned round = 0; round < ROUNDS; ++round) {
    gmm_result result = gmm_pause(context, &desc, NULL);
    if (result == GMM_OK && round % 3 == 1)
      for (unsigned i = 0; i < OWN && result >= 0; ++i)
        result = gmm_resume_range(context, self->blocks[i], own_size(i), NULL);
    else if (result == GMM_OK)
      result = gmm_resume(context, &desc, NULL);
    if (result < 0) {
      printf("# round %u: %s\n", round, gmm_last_error_message());
      atomic_fetch_add(self->failures, 1);
    }
  }
  return NULL;
}
VMM_CASE(tags_pause_at_the_same_time) {
  enum { OWNERS = 4 };
  static owner owners[OWNERS];
  static const gmm_contents contents[OWNERS] = {GMM_CONTENTS_HOST, GMM_CONTENTS_FILE, GMM_CONTENTS_HOST,
                                                GMM_CONTENTS_FILE};
  atomic_int failures = 0;
  pthread_t threads[OWNERS];
  // Too little page-locked and pageable memory for all.
  const gmm_backup_desc limits = {
      .struct_size = sizeof limits, .arena_limit = 32 * MIB, .pageable_limit = 16 * MIB, .threads = 2};
  MUST(gmm_backup_configure(context, &limits));
  for (unsigned t = 0; t < OWNERS; ++t) {
    char name[16];
    snprintf(name, sizeof name, "owner %u", t);
    owners[t] = (owner){.tag = make_tag(name, contents[t]), .seed = 100 * t, .failures = &failures};
    for (unsigned i = 0; i < OWN; ++i) {
      owners[t].blocks[i] = FILLED_TAG(own_size(i), owners[t].tag, owners[t].seed + i);
    }
  }
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  for (unsigned t = 0; t < OWNERS; ++t) REQUIRE(pthread_create(&threads[t], NULL, pause_and_resume, &owners[t]) == 0);
  for (unsigned t = 0; t < OWNERS; ++t) pthread_join(threads[t], NULL);
  CHECK_EQUAL(atomic_load(&failures), 0);
  for (unsigned t = 0; t < OWNERS; ++t)
    for (unsigned i = 0; i < OWN; ++i) {
      CHECK_PATTERN(owners[t].blocks[i], own_size(i), owners[t].seed + i);
      FREE(owners[t].blocks[i]);
    }
  OK(gmm_trim(context, NULL, NULL));
  gmm_backup_info info = backup_info();
  CHECK_EQUAL(info.arena_used + info.pageable_bytes + info.file_bytes + info.zero_bytes, 0);
}

// An operation on every tag waits for those before it, and those after it wait for it.
VMM_CASE(every_tag_waits_for_one) {
  const gmm_tag first = make_tag("first", GMM_CONTENTS_HOST), second = make_tag("second", GMM_CONTENTS_HOST);
  void *a = FILLED_TAG(MIB, first, 1), *b = FILLED_TAG(MIB, second, 2);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  blocker hold = BLOCKER;
  gmm_ticket *held = start_held(true, &first, &hold), *all = NULL, *later = NULL;
  const gmm_pause_desc every = {.struct_size = sizeof every}, one = one_tag(&first);
  MUST(gmm_pause_async(context, &every, &all));
  MUST(gmm_resume_async(context, &one, &later));
  sleep_ms(20);  // they wait by then, or soon: what follows holds either way
  RESULT(gmm_ticket_wait(all, 0, NULL), GMM_ERROR_NOT_READY);
  RESULT(gmm_ticket_wait(later, 0, NULL), GMM_ERROR_NOT_READY);
  let_go(&hold);
  OK(gmm_ticket_wait(held, GMM_FOREVER, NULL));
  CHECK(gmm_ticket_wait(all, GMM_FOREVER, NULL) >= 0);
  CHECK(gmm_ticket_wait(later, GMM_FOREVER, NULL) >= 0);
  CHECK(gmm_resume(context, &every, NULL) >= 0);
  CHECK_PATTERN(a, MIB, 1);
  CHECK_PATTERN(b, MIB, 2);
  OK(gmm_ticket_destroy(held));
  OK(gmm_ticket_destroy(all));
  OK(gmm_ticket_destroy(later));
}

int main(void) { return run_cases(); }
