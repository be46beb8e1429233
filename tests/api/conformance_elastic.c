// SPDX-License-Identifier: Apache-2.0
// GMM_ALLOC_PAUSED: blocks of which parts are taken and given back.
#include "pause_support.h"

static const uint64_t PAGE = 2 * MIB, RESERVED = (uint64_t)1 << 40;

static gmm_result take(const gmm_range *ranges, uint32_t count, uint32_t flags, uint64_t *bytes) {
  return gmm_resume(context, DESC(pause_desc, .flags = flags, .ranges = ranges, .range_count = count), bytes);
}
static gmm_result give_back(const gmm_range *ranges, uint32_t count, uint32_t flags, uint64_t *bytes) {
  return gmm_pause(context, DESC(pause_desc, .flags = flags, .ranges = ranges, .range_count = count), bytes);
}
static char *reserve(uint64_t size, gmm_tag tag) {
  char *block = NULL;
  MUST(gmm_alloc(context, size, HERE(.tag = tag, .flags = GMM_ALLOC_PAUSED), (void **)&block));
  return block;
}
#define LIST(...) \
  (const gmm_range[]) { __VA_ARGS__ }
// Bytes that count: live, paused, and held though nobody wants them.
static void check_counted_with(uint64_t taken, uint64_t paused, uint64_t spare) {
  const gmm_stats_info now = stats();
  CHECK_EQUAL(now.live_bytes, taken);
  CHECK_EQUAL(now.reserved_bytes, taken - paused + spare);
  CHECK_EQUAL(now.paused_bytes, paused);
}
static void check_counted(uint64_t taken, uint64_t paused) { check_counted_with(taken, paused, 0); }

VMM_CASE(a_block_is_born_paused) {
  const gmm_tag tag = make_tag("born", GMM_CONTENTS_DROP);
  const uint64_t calls = stats().backend_calls;
  char *block = reserve(RESERVED, tag);
  CHECK(stats().backend_calls - calls <= 1);
  check_counted(0, 0);
  CHECK_EQUAL(stats().live_blocks, 1);
  for (uint64_t at = 0; at < RESERVED; at += RESERVED / 8) {
    const gmm_pointer_info info = query(block + at + PAGE + 5);
    CHECK(info.base == block && info.allocation_base == block + at + PAGE);
    CHECK_EQUAL(info.size, RESERVED);
    CHECK_EQUAL(info.allocation_size, PAGE);
    CHECK_EQUAL(info.state, GMM_STATE_PAUSED);
    CHECK_EQUAL(info.tag, tag);
  }
  RESULT(gmm_fill(context, block + 3 * PAGE, 1, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_resume(context, NULL, NULL), GMM_UNCHANGED);
  RESULT(gmm_pause(context, NULL, NULL), GMM_UNCHANGED);
  RESULT(gmm_free(context, block + PAGE, GMM_STREAM_DEFAULT), GMM_ERROR_INTERIOR_POINTER);
  FREE(block);
  RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(query(block + 7 * PAGE).state, GMM_STATE_UNKNOWN);
}

VMM_CASE(parts_are_taken_and_given_back) {
  char *block = reserve(RESERVED, make_tag("parts", GMM_CONTENTS_DROP));
  uint64_t bytes = 0;
  OK(gmm_resume_range(context, block + 100 * PAGE + 5, 10, &bytes));
  CHECK_EQUAL(bytes, PAGE);
  write_pattern(block + 100 * PAGE, PAGE, 1, GMM_STREAM_DEFAULT);
  CHECK_EQUAL(state_of(block), GMM_STATE_PARTLY_PAUSED);
  CHECK((query(block + 100 * PAGE).flags & GMM_POINTER_DEVICE_ACCESSIBLE) != 0);
  CHECK_EQUAL(query(block).flags, 0);
  RESULT(gmm_fill(context, block + 101 * PAGE - 1, 1, 2, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_resume_range(context, block + 100 * PAGE, PAGE, &bytes), GMM_UNCHANGED);
  // A list over what is taken and what is not, near and far.
  OK(take(LIST({block + RESERVED - 70 * MIB, 70 * MIB}, {block, 1}, {block + 99 * PAGE, 3 * PAGE}), 3, 0, &bytes));
  CHECK_EQUAL(bytes, 70 * MIB + 3 * PAGE);
  CHECK_PATTERN(block + 100 * PAGE, PAGE, 1);
  check_counted(70 * MIB + 4 * PAGE, 0);
  CHECK_EQUAL(query(block + RESERVED - 1).allocation_size, 6 * MIB);
  CHECK_EQUAL(query(block + RESERVED - 70 * MIB).allocation_size, 64 * MIB);
  OK(gmm_pause_range(context, block + RESERVED - 70 * MIB, 64 * MIB, 0, &bytes));
  CHECK_EQUAL(bytes, 64 * MIB);
  RESULT(gmm_pause_range(context, block + RESERVED - 70 * MIB, 64 * MIB, 0, &bytes), GMM_UNCHANGED);
  OK(give_back(LIST({block, 50 * PAGE}, {block + 98 * PAGE, 2 * PAGE}), 2, 0, &bytes));
  CHECK_EQUAL(bytes, 2 * PAGE);
  check_counted_with(6 * MIB + 2 * PAGE, 0, 64 * MIB + 2 * PAGE);
  CHECK_PATTERN(block + 100 * PAGE, PAGE, 1);
  FREE(block);
  CHECK_EQUAL(stats().live_bytes, 0);
  OK(gmm_trim(context, NULL, NULL));
  check_counted(0, 0);
}

VMM_CASE(a_tag_brings_back_what_was_taken) {
  const gmm_tag tag = make_tag("taken", GMM_CONTENTS_HOST);
  char *block = reserve(RESERVED, tag), *other = FILLED_TAG(3 * MIB, tag, 9);
  OK(take(LIST({block, 3 * PAGE}, {block + 10 * PAGE, PAGE}), 2, 0, NULL));
  write_pattern(block, 3 * PAGE, 1, GMM_STREAM_DEFAULT);
  write_pattern(block + 10 * PAGE, PAGE, 2, GMM_STREAM_DEFAULT);
  const uint64_t held = stats().reserved_bytes;
  uint64_t bytes = 0;
  OK(gmm_pause(context, NULL, &bytes));
  CHECK_EQUAL(bytes, held);
  CHECK_EQUAL(tag_info(tag).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(state_of(block), GMM_STATE_PAUSED);
  uint8_t first = 0;
  OK(gmm_backup_read(context, block + 10 * PAGE, 1, &first));
  RESULT(gmm_backup_read(context, block + 20 * PAGE, 1, &first), GMM_ERROR_INVALID_VALUE);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, held);
  CHECK_PATTERN(block, 3 * PAGE, 1);
  CHECK_PATTERN(block + 10 * PAGE, PAGE, 2);
  CHECK_PATTERN(other, 3 * MIB, 9);
  CHECK_EQUAL(tag_info(tag).state, GMM_STATE_ACTIVE);
  // Pages that were given back with their contents come back with the tag. Those given back without them do not, also
  // if that was while the tag was paused.
  OK(gmm_pause_range(context, block + 10 * PAGE, PAGE, 0, NULL));
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_pause_range(context, block, 3 * PAGE, GMM_PAUSE_DROP, &bytes));
  CHECK_EQUAL(bytes, 0);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, held - 3 * PAGE);
  CHECK_PATTERN(block + 10 * PAGE, PAGE, 2);
  CHECK_EQUAL(query(block).allocation_size, PAGE);
  RESULT(gmm_fill(context, block, 1, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  // Freed while it is paused.
  OK(gmm_pause(context, NULL, NULL));
  FREE(block);
  OK(gmm_resume(context, NULL, NULL));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_PATTERN(other, 3 * MIB, 9);
  CHECK_EQUAL(stats().paused_bytes, 0);
  CHECK_EQUAL(backup_info().arena_used + backup_info().pageable_bytes, 0);
}

VMM_CASE(taken_pages_read_as_zero_on_request) {
  char *block = reserve(16 * PAGE, make_tag("zero", GMM_CONTENTS_HOST)), zero[4096] = {0}, read[4096];
  OK(gmm_resume_range(context, block, 2 * PAGE, NULL));
  write_pattern(block, 2 * PAGE, 3, GMM_STREAM_DEFAULT);
  OK(gmm_pause_range(context, block, 2 * PAGE, GMM_PAUSE_KEEP_HOST, NULL));
  OK(take(LIST({block, 4 * PAGE}), 1, GMM_RESUME_ZERO, NULL));
  CHECK_PATTERN(block, 2 * PAGE, 3);
  OK(gmm_copy(context, read, block + 4 * PAGE - sizeof read, sizeof read, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK(memcmp(read, zero, sizeof read) == 0);
}

VMM_CASE(a_list_is_taken_whole_or_not_at_all) {
  char *block = reserve(RESERVED, make_tag("whole", GMM_CONTENTS_DROP));
  OK(gmm_resume_range(context, block, PAGE, NULL));
  write_pattern(block, PAGE, 4, GMM_STREAM_DEFAULT);
  set_limit(GMM_SCOPE_DEVICE, 0, 8 * PAGE);
  uint64_t bytes = 9;
  const gmm_range *ranges = LIST({block, 2 * PAGE}, {block + 10 * PAGE, 4 * PAGE}, {block + 20 * PAGE, 4 * PAGE});
  RESULT(take(ranges, 3, 0, &bytes), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(bytes, 9);
  check_counted(PAGE, 0);
  CHECK_PATTERN(block, PAGE, 4);
  CHECK_EQUAL(stats().extents, 1);
  OK(take(ranges, 2, 0, &bytes));
  CHECK_EQUAL(bytes, 5 * PAGE);
  RESULT(gmm_resume_range(context, block, RESERVED, NULL), GMM_ERROR_LIMIT_EXCEEDED);
  check_counted(6 * PAGE, 0);
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
}

VMM_CASE(wrong_ranges_change_nothing) {
  char *block = reserve(32 * PAGE - 5, make_tag("wrong", GMM_CONTENTS_DROP)), *other = ALLOC(6 * MIB);
  OK(gmm_resume_range(context, block, 4 * PAGE, NULL));
  const uint64_t live = stats().live_bytes;
  RESULT(gmm_pause_range(context, block + PAGE, 3 * PAGE, 0, NULL), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_pause_range(context, block, 4 * PAGE - 1, 0, NULL), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_pause_range(context, block + 8 * PAGE, 5, 0, NULL), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_pause_range(context, block, 33 * PAGE, 0, NULL), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_pause_range(context, other, PAGE, 0, NULL), GMM_ERROR_INVALID_KIND);
  RESULT(gmm_pause_range(context, &live, 8, 0, NULL), GMM_ERROR_UNKNOWN_POINTER);
  RESULT(gmm_pause_range(context, block, PAGE, GMM_RESUME_ZERO, NULL), GMM_ERROR_INVALID_FLAGS);
  RESULT(take(LIST({block, PAGE}, {block + PAGE - 1, 1}), 2, 0, NULL), GMM_ERROR_INVALID_VALUE);
  RESULT(take(LIST({block, 64 * PAGE}), 1, 0, NULL), GMM_ERROR_UNKNOWN_POINTER);
  RESULT(take(LIST({block, 0}), 1, 0, NULL), GMM_ERROR_INVALID_SIZE);
  RESULT(take(NULL, 1, 0, NULL), GMM_ERROR_NULL_ARGUMENT);
  CHECK_EQUAL(stats().live_bytes, live);
  CHECK_EQUAL(query(block).allocation_size, 4 * PAGE);
  gmm_ipc_handle handle;
  gmm_ipc_fd_info fd = {.struct_size = sizeof fd};
  if (query(block).ipc_routes != 0) {
    RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_PAUSED);
    RESULT(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &fd), GMM_ERROR_PAUSED);
  }
  RESULT(gmm_move(context, block, GMM_DEVICE_HOST, NULL), GMM_ERROR_PAUSED);
  // The last page is the block's to its end.
  OK(gmm_resume_range(context, block + 31 * PAGE, 1, NULL));
  OK(gmm_pause_range(context, block + 31 * PAGE, PAGE - 5, 0, NULL));
  FREE(block);
  RESULT(gmm_pause_range(context, block, 4 * PAGE, 0, NULL), GMM_ERROR_UNKNOWN_POINTER);
}

VMM_CASE(an_import_keeps_its_part) {
  char *block = reserve(2 * PAGE, make_tag("imported", GMM_CONTENTS_DROP));
  OK(gmm_resume_range(context, block, 2 * PAGE, NULL));
  if (query(block).ipc_routes == 0) SKIP("the memory cannot be shared");
  gmm_ipc_handle handle;
  void *imported = NULL;
  uint64_t bytes = 0;
  MUST(gmm_ipc_export(context, block, &handle));
  MUST(gmm_ipc_import(context, &handle, NULL, &imported));
  OK(gmm_pause_range(context, block, 2 * PAGE, 0, &bytes));
  CHECK_EQUAL(bytes, 2 * PAGE);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, 2 * PAGE);
  OK(gmm_ipc_close(context, imported));
  OK(gmm_pause_range(context, block, 2 * PAGE, 0, NULL));
  check_counted_with(0, 0, 2 * PAGE);
  // Pages of which a descriptor left the process serve no other part.
  gmm_ipc_fd_info fd = {.struct_size = sizeof fd};
  OK(gmm_resume_range(context, block, 2 * PAGE, NULL));
  if (gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &fd) == GMM_OK) {
    OK(gmm_pause_range(context, block, 2 * PAGE, 0, NULL));
    check_counted(0, 0);
    close(fd.fd);
  }
  RESULT(gmm_resume(context, NULL, NULL), GMM_UNCHANGED);
  RESULT(gmm_resume_wait(context, block, 4 * PAGE, 0), GMM_ERROR_UNKNOWN_POINTER);
}

VMM_CASE(addresses_may_run_out) {
  enum { MOST = 4 };  // of 64 TiB each: more than a process has
  void *all[MOST + 1] = {NULL};
  uint32_t count = 0;
  gmm_result result = GMM_OK;
  while (count <= MOST && result == GMM_OK)
    result = gmm_alloc(context, (uint64_t)1 << 46, HERE(.flags = GMM_ALLOC_PAUSED), &all[count++]);
  CHECK(result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY);
  CHECK(all[count - 1] == NULL);
  CHECK_EQUAL(stats().live_blocks, count - 1);
}

VMM_CASE(a_thread_waits_for_a_part) {
  char *block = reserve(RESERVED, make_tag("awaited", GMM_CONTENTS_DROP));
  RESULT(gmm_resume_wait(context, block + PAGE, PAGE, 0), GMM_ERROR_NOT_READY);
  gmm_ticket *ticket = NULL;
  OK(gmm_resume_async(
      context, DESC(pause_desc, .ranges = LIST({block + PAGE, PAGE}, {block + 9 * PAGE, PAGE}), .range_count = 2),
      &ticket));
  OK(gmm_resume_wait(context, block + PAGE, PAGE, SOON_S * 1000));
  ENDS_WITH(ticket, GMM_OK);
  write_pattern(block + 9 * PAGE, PAGE, 5, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block + 9 * PAGE, PAGE, 5);
}

// --- Pages that were given back ---

// The driver is asked for nothing while a part comes and goes. Another part gets its pages, and so do others.
VMM_CASE(pages_stay_until_somebody_wants_them) {
  const gmm_tag tag = make_tag("stay", GMM_CONTENTS_DROP);
  char *block = reserve(RESERVED, tag), *second = reserve(RESERVED, tag);
  const gmm_range *parts = LIST({block, PAGE}, {block + 8 * PAGE, PAGE});
  uint64_t bytes = 0;
  OK(take(parts, 2, 0, NULL));
  OK(give_back(parts, 2, GMM_PAUSE_ORDERED, &bytes));
  CHECK_EQUAL(bytes, 2 * PAGE);
  CHECK_EQUAL(state_of(block), GMM_STATE_PAUSED);
  RESULT(gmm_fill(context, block, 1, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_resume_wait(context, block, PAGE, 0), GMM_ERROR_NOT_READY);
  RESULT(give_back(parts, 2, GMM_PAUSE_ORDERED, NULL), GMM_UNCHANGED);
  RESULT(gmm_resume(context, NULL, NULL), GMM_UNCHANGED);
  check_counted_with(0, 0, 2 * PAGE);
  const uint64_t calls = stats().backend_calls;
  for (uint32_t i = 0; i < 10; ++i) {
    OK(take(parts, 2, GMM_PAUSE_ORDERED, &bytes));
    CHECK_EQUAL(bytes, 2 * PAGE);
    if (i == 9) break;
    OK(give_back(parts, 2, GMM_PAUSE_ORDERED, NULL));
  }
  CHECK_EQUAL(stats().backend_calls, calls);
  check_counted(2 * PAGE, 0);
  // A part of another block gets them. A limit counts them once.
  set_limit(GMM_SCOPE_DEVICE, 0, 2 * PAGE);
  OK(give_back(parts, 2, 0, NULL));
  OK(gmm_resume_range(context, second + 5 * PAGE, PAGE, &bytes));
  CHECK_EQUAL(bytes, PAGE);
  check_counted_with(PAGE, 0, PAGE);
  CHECK_EQUAL(stats().extents, 2);
  write_pattern(second + 5 * PAGE, PAGE, 7, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(second + 5 * PAGE, PAGE, 7);
  // Memory of another tag and size, for which the limit leaves nothing else.
  FREE(ALLOC(PAGE / 2));
  check_counted_with(PAGE, 0, PAGE);
  OK(gmm_trim(context, NULL, NULL));
  check_counted(PAGE, 0);
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
  // The pause of the tag returns them, and its resume brings back what was taken.
  OK(take(parts, 2, 0, NULL));
  OK(give_back(parts, 1, 0, NULL));
  OK(gmm_pause(context, NULL, &bytes));
  CHECK_EQUAL(bytes, 3 * PAGE);
  check_counted(2 * PAGE, 2 * PAGE);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, 2 * PAGE);
  // So does the free of the block.
  OK(give_back(parts + 1, 1, 0, NULL));
  FREE(block);
  CHECK_EQUAL(stats().live_bytes, PAGE);
  OK(gmm_trim(context, NULL, NULL));
  check_counted(PAGE, 0);
}

VMM_CASE(a_smaller_part_takes_no_more_than_itself) {
  char *block = reserve(RESERVED, make_tag("cut", GMM_CONTENTS_DROP));
  OK(gmm_resume_range(context, block, 4 * PAGE, NULL));
  OK(gmm_pause_range(context, block, 4 * PAGE, 0, NULL));
  OK(gmm_resume_range(context, block + PAGE, PAGE, NULL));
  check_counted(PAGE, 0);
  OK(gmm_resume_range(context, block, 4 * PAGE, NULL));
  check_counted(4 * PAGE, 0);
  CHECK_EQUAL(query(block + 3 * PAGE).allocation_size, 2 * PAGE);
}

VMM_CASE(idle_pages_return_by_age) {
  char *block = reserve(RESERVED, make_tag("aged", GMM_CONTENTS_DROP));
  OK(gmm_resume_range(context, block, 40 * PAGE, NULL));
  OK(gmm_pause_range(context, block, 32 * PAGE, 0, NULL));
  OK(gmm_context_set_decommit(context, 5));
  SOON(stats().reserved_bytes == 8 * PAGE);
  OK(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  OK(gmm_resume_range(context, block, 32 * PAGE, NULL));
  check_counted(40 * PAGE, 0);
}

VMM_CASE(pages_are_made_ahead) {
  char *block = reserve(RESERVED, make_tag("ahead", GMM_CONTENTS_DROP));
  const gmm_range *parts = LIST({block, PAGE}, {block + PAGE, PAGE}, {block + 9 * PAGE, 3 * PAGE});
  gmm_ticket *ticket = NULL;
  OK(gmm_resume_async(context, DESC(pause_desc, .flags = GMM_RESUME_PREPARE, .ranges = parts, .range_count = 3),
                      &ticket));
  ENDS_WITH(ticket, GMM_OK);
  check_counted_with(0, 0, 5 * PAGE);
  CHECK_EQUAL(state_of(block), GMM_STATE_PAUSED);
  RESULT(take(parts, 3, GMM_RESUME_PREPARE, NULL), GMM_UNCHANGED);
  const uint64_t calls = stats().backend_calls;
  OK(take(LIST({block, 2 * PAGE}, {block + 9 * PAGE, 3 * PAGE}), 2, GMM_PAUSE_ORDERED, NULL));
  CHECK_EQUAL(stats().backend_calls, calls);
  check_counted(5 * PAGE, 0);
  write_pattern(block, 2 * PAGE, 8, GMM_STREAM_DEFAULT);
  RESULT(take(parts, 3, GMM_RESUME_PREPARE, NULL), GMM_UNCHANGED);
  CHECK_PATTERN(block, 2 * PAGE, 8);
}

static void note_order(void *user) {
  sleep_ms(20);
  *(volatile int *)user = 1;
}
// Queued work may use pages after they were given back, and comes before the next use of them.
VMM_CASE(pages_follow_a_stream) {
  char *block = reserve(RESERVED, make_tag("ordered", GMM_CONTENTS_DROP));
  gmm_stream first = NULL, second = NULL;
  volatile int passed = 0;
  OK(gmm_stream_create(context, STREAM_ON(device), &first));
  OK(gmm_stream_create(context, STREAM_ON(device), &second));
  const gmm_pause_desc on_first =
      *DESC(pause_desc, .flags = GMM_PAUSE_ORDERED, .ranges = LIST({block, PAGE}), .range_count = 1, .stream = first);
  gmm_pause_desc on_second = on_first;
  on_second.stream = second;
  OK(gmm_resume(context, &on_first, NULL));
  OK(gmm_stream_call(context, first, note_order, (void *)&passed));
  OK(gmm_fill(context, block, 1, PAGE, first));
  OK(gmm_pause(context, &on_first, NULL));
  CHECK_EQUAL(passed, 0);
  // Another part needs pages of its own while these are in use.
  OK(gmm_resume_range(context, block + 4 * PAGE, PAGE, NULL));
  check_counted_with(PAGE, 0, PAGE);
  OK(gmm_resume(context, &on_second, NULL));
  write_pattern(block, PAGE, 2, second);
  OK(gmm_stream_synchronize(context, second));
  CHECK_EQUAL(passed, 1);
  CHECK_PATTERN(block, PAGE, 2);
  // Without the order the call waits.
  passed = 0;
  OK(gmm_stream_call(context, first, note_order, (void *)&passed));
  OK(gmm_pause(context, &on_first, NULL));
  OK(gmm_resume_range(context, block, PAGE, NULL));
  CHECK_EQUAL(passed, 1);
  passed = 0;
  OK(gmm_stream_call(context, first, note_order, (void *)&passed));
  OK(gmm_pause(context, &on_first, NULL));
  FREE(block);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(passed, 1);
  check_counted(0, 0);
  OK(gmm_stream_destroy(context, first));
  OK(gmm_stream_destroy(context, second));
}

// Pages that are taken and given back at random hold no more than was taken at once, and after a trim what is taken.
// Other parts keep their contents.
VMM_CASE(pages_come_and_go) {
  enum { PAGES = 64, STEPS = 400 };
  char *block = reserve(PAGES * PAGE, make_tag("random", GMM_CONTENTS_DROP));
  uint32_t seeds[PAGES] = {0}, state = 17, taken = 0, most = 0;
  for (uint32_t step = 1; step <= STEPS; ++step) {
    state = state * 1664525 + 1013904223;
    const uint32_t page = state >> 26;
    char *at = block + page * PAGE;
    if (seeds[page] == 0) {
      OK(gmm_resume_range(context, at, PAGE, NULL));
      write_pattern(at, 4096, seeds[page] = step, GMM_STREAM_DEFAULT);
      most = ++taken > most ? taken : most;
    } else {
      CHECK_PATTERN(at, 4096, seeds[page]);
      OK(gmm_pause_range(context, at, PAGE, 0, NULL));
      seeds[page] = 0;
      --taken;
    }
    REQUIRE(stats().reserved_bytes == most * PAGE);
  }
  OK(gmm_trim(context, NULL, NULL));
  check_counted(taken * PAGE, 0);
}

// Blocks of the same heap go past the elastic one, whose parts are given back and taken meanwhile.
VMM_CASE(other_blocks_go_on) {
  const gmm_tag tag = make_tag("others", GMM_CONTENTS_DROP);
  char *block = reserve(RESERVED, tag);
  OK(gmm_resume_range(context, block, PAGE, NULL));
  FREE(FILLED_TAG(100, tag, 1));
  const uint64_t calls = stats().backend_calls;
  for (uint32_t i = 0; i < 100; ++i) FREE(ALLOC_TAG(100, tag));
  CHECK_EQUAL(stats().backend_calls, calls);
  gmm_compact_info work = {.struct_size = sizeof work};
  CHECK(gmm_compact(context, NULL, DESC(compact_desc, .flags = GMM_COMPACT_LIVE), &work) >= 0);
  OK(gmm_trim(context, NULL, NULL));
  write_pattern(block, PAGE, 6, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, PAGE, 6);
  MUST(gmm_reset(context));
  CHECK_EQUAL(stats().live_bytes, 0);
}

int main(void) { return run_cases(); }
