// SPDX-License-Identifier: Apache-2.0
// pause.h: GMM_PAUSE_HOLD stops a pause or resume where nothing can fail any more and nothing has changed.
//
// The program is also the second rank of its last case: it holds its own pause, says so, and follows the first rank.
#include "../support/second_process.h"
#include "pause_support.h"

enum { LONG_MS = 60000, SHORT_MS = 400 };

static gmm_ticket *start(bool pauses, const gmm_tag *tag, uint32_t flags, uint64_t hold_ms) {
  gmm_pause_desc desc = one_tag(tag);
  desc.flags = GMM_PAUSE_HOLD | flags;
  desc.hold_ms = hold_ms;
  gmm_ticket *ticket = NULL;
  MUST((pauses ? gmm_pause_async : gmm_resume_async)(context, &desc, &ticket));
  return ticket;
}
static gmm_ticket *hold(bool pauses, const gmm_tag *tag, uint32_t flags) {
  gmm_ticket *ticket = start(pauses, tag, flags, LONG_MS);
  MUST(gmm_ticket_wait_held(ticket, GMM_FOREVER));
  return ticket;
}
static uint64_t finish(gmm_ticket *ticket) {
  uint64_t bytes = 0;
  OK(gmm_ticket_commit(ticket));
  OK(gmm_ticket_wait(ticket, GMM_FOREVER, &bytes));
  OK(gmm_ticket_destroy(ticket));
  return bytes;
}

VMM_CASE(a_held_pause_has_copied_all_and_changed_nothing) {
  static const gmm_contents all_contents[] = {GMM_CONTENTS_HOST, GMM_CONTENTS_FILE, GMM_CONTENTS_DROP};
  for (unsigned c = 0; c < 3; ++c) {
    gmm_tag tag = make_tag(c == 0 ? "host" : c == 1 ? "file" : "drop", all_contents[c]);
    allocate_blocks(tag, 100);
    const uint64_t active = tag_info(tag).active_bytes;
    gmm_ticket *ticket = hold(true, &tag, 0);
    gmm_ticket_info info = ticket_info(ticket);
    CHECK_EQUAL(info.state, GMM_TICKET_HELD);
    CHECK_EQUAL(info.result, GMM_ERROR_NOT_READY);
    CHECK_EQUAL(info.copied_bytes, info.total_bytes);
    CHECK((info.total_bytes > 0) == (all_contents[c] != GMM_CONTENTS_DROP));
    RESULT(gmm_ticket_wait(ticket, 0, NULL), GMM_ERROR_NOT_READY);
    CHECK_EQUAL(tag_info(tag).active_bytes, active);
    CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_ACTIVE);
    check_blocks(100);
    // A free waits for nobody, and new blocks are not part of it.
    FREE(blocks[38]);
    blocks[38] = FILLED_TAG(block_size(38), tag, 138);
    OK(gmm_ticket_commit(ticket));
    CHECK(gmm_ticket_commit(ticket) >= 0);
    OK(gmm_ticket_cancel(ticket));  // too late
    uint64_t went = 0;
    OK(gmm_ticket_wait(ticket, GMM_FOREVER, &went));
    RESULT(gmm_ticket_commit(ticket), GMM_UNCHANGED);
    OK(gmm_ticket_wait_held(ticket, 0));
    CHECK_EQUAL(ticket_info(ticket).state, GMM_TICKET_DONE);
    OK(gmm_ticket_destroy(ticket));
    CHECK(went > 0);
    CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_PAUSED);
    CHECK_EQUAL(query(blocks[38]).state, GMM_STATE_ACTIVE);
    CHECK_PATTERN(blocks[38], block_size(38), 138);

    // A held resume has its pages and maps none.
    ticket = hold(false, &tag, 0);
    CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_PAUSED);
    CHECK(tag_info(tag).active_bytes >= went);
    RESULT(gmm_resume_wait(context, blocks[0], 1, 0), GMM_ERROR_NOT_READY);
    CHECK_EQUAL(finish(ticket), went);
    CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_ACTIVE);
    if (all_contents[c] != GMM_CONTENTS_DROP) check_blocks(100);
    free_blocks();
    OK(gmm_trim(context, NULL, NULL));
  }
}

VMM_CASE(bytes_written_during_the_hold_are_kept) {
  for (unsigned pass = 0; pass < 4; ++pass) {
    // Page-locked memory, pageable memory, a file, and zeros that have become others.
    OK(gmm_backup_configure(context, DESC(backup_desc, .flags = pass == 1 ? GMM_BACKUP_NO_ARENA : 0)));
    gmm_tag tag = make_tag(pass == 2 ? "file" : "host", pass == 2 ? GMM_CONTENTS_FILE : GMM_CONTENTS_HOST);
    allocate_blocks(tag, 300);
    if (pass == 3)
      for (unsigned i = 0; i < BLOCKS; ++i) OK(gmm_fill(context, blocks[i], 0, block_size(i), GMM_STREAM_DEFAULT));
    gmm_ticket *ticket = hold(true, &tag, 0);
    for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(blocks[i], block_size(i), 400 + i, GMM_STREAM_DEFAULT);
    finish(ticket);
    CHECK_EQUAL(query(blocks[39]).state, GMM_STATE_PAUSED);
    OK(gmm_resume(context, NULL, NULL));
    check_blocks(400);
    free_blocks();
    OK(gmm_trim(context, NULL, NULL));
  }
}

// Contents that the program promises not to write are copied once. So are those of a read-only tag.
VMM_CASE(unwritten_contents_are_copied_once) {
  const gmm_tag tags[3] = {make_tag("written", GMM_CONTENTS_HOST), make_tag("unwritten", GMM_CONTENTS_HOST),
                           make_tag_of("read-only", GMM_CONTENTS_HOST, GMM_TAG_READ_ONLY)};
  for (unsigned i = 0; i < 3; ++i) {
    allocate_blocks(tags[i], 500);
    gmm_ticket *ticket = hold(true, &tags[i], i == 1 ? GMM_PAUSE_NO_WRITES : 0);
    const uint64_t before = backup_info().copied_bytes;
    finish(ticket);
    CHECK((backup_info().copied_bytes > before) == (i == 0));
    OK(gmm_resume(context, NULL, NULL));
    check_blocks(500);
    free_blocks();
  }
}

VMM_CASE(what_is_not_committed_is_undone) {
  enum { CANCEL, DEADLINE, DESTROY, WAYS };
  gmm_tag tag = make_tag("undone", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 600);
  for (int pauses = 1; pauses >= 0; --pauses) {
    const gmm_tag_info before = tag_info(tag);
    for (int way = CANCEL; way < WAYS; ++way) {
      gmm_ticket *ticket = start(pauses, &tag, 0, way == DEADLINE ? SHORT_MS : LONG_MS);
      OK(gmm_ticket_wait_held(ticket, GMM_FOREVER));
      if (way == CANCEL) OK(gmm_ticket_cancel(ticket));
      if (way != DESTROY) {
        RESULT(gmm_ticket_wait(ticket, GMM_FOREVER, NULL), GMM_ERROR_CANCELLED);
        CHECK(message_has(way == CANCEL ? "cancelled" : "hold_ms"));
        RESULT(gmm_ticket_commit(ticket), GMM_ERROR_CANCELLED);
        RESULT(gmm_ticket_wait_held(ticket, 0), GMM_ERROR_CANCELLED);
        CHECK_EQUAL(ticket_info(ticket).state, GMM_TICKET_DONE);
      }
      const double began = now_s();
      OK(gmm_ticket_destroy(ticket));
      CHECK(now_s() - began < SOON_S / 2);
      CHECK_EQUAL(tag_info(tag).active_bytes, before.active_bytes);
      CHECK_EQUAL(tag_info(tag).paused_bytes, before.paused_bytes);
      CHECK_EQUAL(tag_info(tag).backup_active_bytes, before.backup_active_bytes);
      if (pauses) check_blocks(600);
    }
    OK(pauses ? gmm_pause(context, NULL, NULL) : gmm_resume(context, NULL, NULL));
  }
  check_blocks(600);
}

// The last reference of the program goes while an operation runs or is held. The ticket has the context, and ends it.
VMM_CASE(a_ticket_outlives_the_last_reference) {
  gmm_context *usual = context;
  const gmm_tag tag = GMM_TAG_DEFAULT;
  const gmm_pause_desc desc = one_tag(&tag);
  for (unsigned is_held = 0; is_held < 2; ++is_held) {
    context = open_context(2);
    ALLOC(8 * MIB);
    gmm_ticket *ticket = NULL;
    if (is_held)
      ticket = hold(true, &tag, 0);
    else
      MUST(gmm_pause_async(context, &desc, &ticket));
    OK(gmm_context_release(context));
    if (!is_held) OK(gmm_ticket_wait(ticket, GMM_FOREVER, NULL));
    OK(gmm_ticket_destroy(ticket));
  }
  context = usual;
}

VMM_CASE(a_hold_keeps_its_heap_and_other_operations_waiting) {
  gmm_tag tag = make_tag("busy", GMM_CONTENTS_HOST);
  gmm_heap *heap = HEAP(.tag = tag);
  void *block = take_of(heap, MIB);
  gmm_ticket *ticket = hold(true, &tag, 0), *other = NULL;
  FREE(block);
  RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
  const gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_resume_async(context, &desc, &other));
  RESULT(gmm_ticket_wait_held(other, 20), GMM_ERROR_NOT_READY);
  RESULT(gmm_ticket_commit(other), GMM_ERROR_NOT_READY);
  OK(gmm_ticket_destroy(ticket));
  CHECK(gmm_ticket_wait(other, GMM_FOREVER, NULL) >= 0);
  OK(gmm_ticket_destroy(other));
}

// So a rank without memory of the tags does as the others do.
VMM_CASE(an_operation_without_memory_is_held_too) {
  gmm_tag tag = make_tag("empty", GMM_CONTENTS_HOST);
  for (int pauses = 1; pauses >= 0; --pauses) {
    gmm_ticket *ticket = hold(pauses, &tag, 0);
    OK(gmm_ticket_commit(ticket));
    ENDS_WITH(ticket, GMM_UNCHANGED);
  }
}

// --- Two ranks -------------------------------------------------------------------------------------------------------

// Says 'h' when its pause is held. Then 'c' commits and anything else undoes; it says its result.
static int second_rank(char **unused) {
  (void)unused;
  context = open_context(2);
  gmm_tag tag = make_tag("rank", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 800);
  char word = 0;
  if (!receive_bytes(0, &word, 1)) return 2;
  gmm_ticket *ticket = start(true, &tag, 0, LONG_MS);
  if (gmm_ticket_wait_held(ticket, GMM_FOREVER) != GMM_OK || !send_bytes(SECOND_OUT, "h", 1)) return 3;
  if (!receive_bytes(0, &word, 1)) return 4;
  OK(word == 'c' ? gmm_ticket_commit(ticket) : gmm_ticket_cancel(ticket));
  gmm_result result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
  OK(gmm_ticket_destroy(ticket));
  if (!send_bytes(SECOND_OUT, &result, sizeof result)) return 5;
  return gmm_context_release(context) == GMM_OK ? 0 : 6;
}

// The other rank dies, stops or is late before it is held, or all goes well. This rank waits for its word at most as
// long as it is held itself.
VMM_CASE(ranks_pause_together_or_not_at_all) {
  enum { WELL, DIES, STOPS, LATE, WAYS };
  gmm_tag tag = make_tag("rank", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 700);
  for (int way = WELL; way < WAYS; ++way) {
    second_process other;
    REQUIRE(second_start(&other, NULL, 0));
    if (way == DIES) kill(other.pid, SIGKILL);
    if (way == STOPS) kill(other.pid, SIGSTOP);
    if (way == WELL || way == STOPS) send_bytes(other.to, "b", 1);
    gmm_ticket *ticket = start(true, &tag, 0, way == WELL ? LONG_MS : SHORT_MS);
    OK(gmm_ticket_wait_held(ticket, GMM_FOREVER));
    char word = 0;
    bool heard = false;
    while (!heard && ticket_info(ticket).state == GMM_TICKET_HELD) {
      struct pollfd ready = {.fd = other.from, .events = POLLIN};
      heard = poll(&ready, 1, 20) > 0 && (ready.revents & POLLIN) != 0 && receive_bytes(other.from, &word, 1);
    }
    CHECK(heard == (way == WELL));
    gmm_result theirs = GMM_OK;
    if (heard) {
      OK(gmm_ticket_commit(ticket));
      send_bytes(other.to, "c", 1);
      OK(gmm_ticket_wait(ticket, GMM_FOREVER, NULL));
      CHECK(receive_bytes(other.from, &theirs, sizeof theirs) && theirs == GMM_OK);
      CHECK_EQUAL(query(blocks[39]).state, GMM_STATE_PAUSED);
    } else {
      RESULT(gmm_ticket_wait(ticket, GMM_FOREVER, NULL), GMM_ERROR_CANCELLED);
      CHECK_EQUAL(query(blocks[39]).state, GMM_STATE_ACTIVE);
      check_blocks(700);
    }
    OK(gmm_ticket_destroy(ticket));
    if (way == STOPS) kill(other.pid, SIGCONT);
    if (way == LATE) send_bytes(other.to, "b", 1);
    if (way == STOPS || way == LATE) {  // it comes to its hold, and hears that the others gave up
      CHECK(receive_bytes(other.from, &word, 1) && word == 'h');
      send_bytes(other.to, "u", 1);
      CHECK(receive_bytes(other.from, &theirs, sizeof theirs) && theirs == GMM_ERROR_CANCELLED);
    }
    CHECK_EQUAL(second_wait(&other), way == DIES ? 1000 + SIGKILL : 0);
    if (way == WELL) OK(gmm_resume(context, NULL, NULL));
    check_blocks(700);
  }
}

int main(int count, char **words) { return run_cases_or(second_rank, count, words); }
