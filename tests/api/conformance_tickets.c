// SPDX-License-Identifier: Apache-2.0
// pause.h: a thread of the library pauses and resumes.
#include "fault_support.h"

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

// Threads pause and resume tags of their own at the same time. Their contents share every tier of the backup.
enum { ROUNDS = 6, OWN = 12, OWNERS = 4 };
static struct {
  gmm_tag tag;
  void *blocks[OWN];
} owners[OWNERS];
static uint64_t own_size(unsigned i) { return i < 8 ? 1000 + i * 40000 : (2 + i) * MIB / 2; }
static void *pause_and_resume(void *number) {
  const uintptr_t t = (uintptr_t)number;
  for (unsigned round = 0; round < ROUNDS; ++round) {
    OK(pause_of(owners[t].tag));
    if (round % 3 == 1)
      for (unsigned i = 0; i < OWN; ++i) CHECK(gmm_resume_range(context, owners[t].blocks[i], own_size(i), NULL) >= 0);
    else
      OK(resume_of(owners[t].tag));
  }
  return NULL;
}
VMM_CASE(tags_pause_at_the_same_time) {
  // Too little page-locked and pageable memory for all.
  MUST(gmm_backup_configure(context,
                            DESC(backup_desc, .arena_limit = 32 * MIB, .pageable_limit = 16 * MIB, .threads = 2)));
  for (unsigned t = 0; t < OWNERS; ++t) {
    char name[16];
    snprintf(name, sizeof name, "owner %u", t);
    owners[t].tag = make_tag(name, t % 2 == 0 ? GMM_CONTENTS_HOST : GMM_CONTENTS_FILE);
    for (unsigned i = 0; i < OWN; ++i) owners[t].blocks[i] = FILLED_TAG(own_size(i), owners[t].tag, 100 * t + i);
  }
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  run_threads(OWNERS, pause_and_resume);
  for (unsigned t = 0; t < OWNERS; ++t)
    for (unsigned i = 0; i < OWN; ++i) {
      CHECK_PATTERN(owners[t].blocks[i], own_size(i), 100 * t + i);
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
